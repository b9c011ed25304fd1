"""`superinfer bench --simulate --calibrate-from`: devices as fast as a real run has shown them to be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from superinfer.cli.bench.served_target import as_served
from superinfer.cli.bench.target import SimulationTarget
from superinfer.cli.main import app
from superinfer.contracts.contract import SLOContract
from superinfer.contracts.errors import UsageError
from superinfer.executor.journal import JournaledScheduler
from superinfer.executor.simulation.events import Hardware
from superinfer.executor.simulation.step_loop import StepLoop
from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.config import DomainSpec, SchedulerConfig
from superinfer.scheduler.request import Request, SamplingParams

SPEC = DomainSpec("0", 400)
RAN_ON = {"model": "tiny", "dtype": "float32", "device": "some CPU"}


def run_folder(folder: Path, model: LatencyModel, ran: LatencyModel) -> Path:
    """What a real bench with --journal leaves, as far as it is read: its devices took what `ran` says."""
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps({**RAN_ON, "weight_dtype": "float32"}))
    contracts = [SLOContract(service_id="any")]
    scheduler = JournaledScheduler(
        folder / "journal-fcfs.jsonl",
        domains=[SPEC],
        contracts=contracts,
        latency_model=model.fresh(),
        config=SchedulerConfig(policy="fcfs"),
    )
    requests = [
        Request(
            request_id=f"r{number}",
            contract_id="any",
            prompt_token_ids=[0] * (20 + 17 * (number % 9)),
            sampling=SamplingParams(max_tokens=10 + 3 * (number % 5), ignore_eos=True),
            arrival_s=0.4 * number,
        )
        for number in range(80)
    ]
    hardware = Hardware({"0": SPEC}, ran, {}, 0.0, None, 0, 0.0, 0.0, {})
    StepLoop(scheduler, hardware).run(iter(requests), lambda done, now: None)
    scheduler.close()
    return folder


@pytest.fixture
def target(model: LatencyModel) -> SimulationTarget:
    return SimulationTarget(
        **RAN_ON,
        latency_model=model,
        domains=[SPEC],
        limits=SchedulerConfig(),
        sigma=0.3,
        block_copy_s=0.0,
        restart_s=1.0,
        max_position=None,
        origin={"latency_model": "measured"},
    )


def test_devices_take_what_steps_took_while_the_scheduler_is_told_what_the_profile_says(tmp_path, model, target):
    folder = run_folder(tmp_path / "run", model, model.at_levels(1.4, 0.8))
    served = as_served(target, [folder])
    assert served.latency_model is model
    assert served.device_model is not None
    wanted = model.at_levels(1.4, 0.8)
    assert served.device_model.launch_s == pytest.approx(wanted.launch_s, rel=0.02)
    assert served.device_model.linear_s(100) == pytest.approx(wanted.linear_s(100), rel=0.02)
    assert served.sigma < 0.01
    assert served.origin["calibrated_from"] == [str(folder)]
    assert as_served(target, [folder, folder]).origin["served_speed"] == served.origin["served_speed"]
    assert served.origin["served_speed"]["memory"] == pytest.approx(1.4, rel=0.02)


def test_what_cannot_calibrate_is_one_clear_error(tmp_path, model, target):
    folder = run_folder(tmp_path / "run", model, model)
    was = r"is a run of tiny in float32 \(float32 weights\) on some CPU; expected one of tiny in "
    with pytest.raises(UsageError, match=was + r"float32 \(int8 weights\) on some CPU"):
        as_served(replace(target, weight_dtype="int8"), [folder])
    with pytest.raises(UsageError, match=was + r"bfloat16 \(float32 weights\)"):
        as_served(replace(target, dtype="bfloat16", weight_dtype="float32"), [folder])
    with pytest.raises(UsageError, match=r"--calibrate-from .*nowhere: is not the run folder of a bench"):
        as_served(target, [tmp_path / "nowhere"])
    journal = folder / "journal-fcfs.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(
        whole.replace(b'"domain_id":"0"', b'"domain_id":"7"', 9).replace(b'"domain_id":"7"', b'"domain_id":"0"', 1)
    )
    with pytest.raises(UsageError, match=r"--calibrate-from .*journal-fcfs.jsonl: is damaged"):
        as_served(target, [folder])
    journal.write_bytes(whole + b'{"type":"Changed","now":1e9,"what":"domain 0 died"}\n')
    with pytest.raises(UsageError, match=r"--calibrate-from .*journal-fcfs.jsonl: .*domain 0 died"):
        as_served(target, [folder])
    journal.write_bytes(b"".join(whole.splitlines(keepends=True)[:60]))
    with pytest.raises(UsageError, match="steps say too little of a device's speed"):
        as_served(target, [folder])
    journal.unlink()
    with pytest.raises(UsageError, match="has no journal; a real bench keeps one with --journal"):
        as_served(target, [folder])


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["bench", "--calibrate-from", "."], ["--calibrate-from", "needs --simulate"]),
        (
            ["bench", "--simulate", "--domain-kind", "int8=1", "--calibrate-from", "."],
            ["several kinds", "--domain-kind"],
        ),
        (
            ["bench", "--simulate", "--force", "--out", "run", "--calibrate-from", "run"],
            ["--out run", "another folder"],
        ),
        (
            ["bench", "--simulate", "--topology", "h100-4x8", "--calibrate-from", "."],
            ["--calibrate-from", "--topology"],
        ),
        (["tune", "--topology", "h100-4x8", "--calibrate-from", "."], ["--calibrate-from", "--topology"]),
    ],
)
def test_real_workers_and_clusters_are_not_calibrated(arguments, parts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, UsageError)
    for part in parts:
        assert part in str(result.exception)
