"""Whole runs on real engine and worker processes, with the toy model whose right output is known."""

from __future__ import annotations

import json
import os
import signal

import pytest
from engine_harness import RUNNER, toy_config, write_profile
from toy_runner import expected_output
from typer.testing import CliRunner

from superinfer.cli import domain_kinds
from superinfer.cli.bench import plan, session
from superinfer.cli.bench.bounds import build_contracts
from superinfer.cli.bench.progress import LoadProgress
from superinfer.cli.bench.run import Load, run_policy
from superinfer.cli.bench.scenario import Fault, override
from superinfer.cli.bench.workload import build_warmup, build_workload, encode_by_hash
from superinfer.cli.main import app
from superinfer.executor.models.source import ModelSource
from superinfer.profiler.store import load_profile
from superinfer.results.outcome import hash_tokens
from superinfer.scheduler.config import SchedulerConfig

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("toy_processes")]

ENCODE = encode_by_hash(30_000)


@pytest.fixture
def load(scenario, model):
    def make(*, rate_rps=60.0, requests=40, faults=()):
        chosen = override(scenario, {"requests": requests})
        return Load(
            warmup=build_warmup(chosen, seed=0, encode=ENCODE),
            workload=build_workload(chosen, seed=0, rate_rps=rate_rps, encode=ENCODE),
            contracts=build_contracts(chosen, model),
            faults=list(faults),
            model=model,
        )

    return make


def config_for(tmp_path, load, **options):
    scheduler = SchedulerConfig(policy="fcfs", max_model_len=512)
    contracts = list(load.contracts.values())
    return toy_config(tmp_path, scheduler=scheduler, contracts=contracts, step_s=0.01, **options)


def test_every_request_of_the_load_completes_with_its_own_tokens(tmp_path, load):
    offered = load()
    result = run_policy(config_for(tmp_path, offered), offered, runner=RUNNER)
    run = result.run
    assert result.engine_error is None
    assert not run.interrupted
    assert [o.request_id for o in run.outcomes] == [p.request_id for p in offered.workload]
    for planned, outcome in zip(offered.workload, run.outcomes, strict=True):
        right = expected_output(planned.prompt_token_ids, planned.output_tokens)
        assert outcome.status in ("met", "missed")
        assert outcome.token_hash == hash_tokens(right)
        assert sum(outcome.stages_ms.values()) == pytest.approx(outcome.e2e_ms, abs=100)


def test_a_killed_worker_loses_no_request_and_changes_no_token(tmp_path, load):
    offered = load(requests=80, faults=[Fault(domain=0, at=0.4)])
    result = run_policy(config_for(tmp_path, offered, domains=2), offered, runner=RUNNER)
    (fault,) = result.run.faults
    assert fault["domain_id"] == "0"
    assert fault["time_s"] == pytest.approx(0.4 * offered.workload[-1].offset_s, abs=0.2)
    assert fault["moved_requests"] > 0
    assert fault["detected_after_ms"] < 1000
    assert fault["time_until_up_s"] is None or fault["time_until_up_s"] > 0
    assert fault["alive_requests"] >= fault["moved_requests"]
    assert (fault["lost"], fault["duplicated"]) == (0, 0)
    assert fault["tokens_compared"] == 80
    assert fault["tokens_verified"] == fault["tokens_compared"]
    assert fault["tokens_differ"] == []
    for planned, outcome in zip(offered.workload, result.run.outcomes, strict=True):
        assert outcome.token_hash == hash_tokens(expected_output(planned.prompt_token_ids, planned.output_tokens))


def test_an_interrupt_ends_the_run_early_with_what_was_measured(tmp_path, load, monkeypatch):
    offered = load(rate_rps=4.0)
    show = LoadProgress.on_sent

    def interrupt_at_the_fifth(progress, record):
        show(progress, record)
        if record.planned.request_id == offered.workload[4].request_id:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(LoadProgress, "on_sent", interrupt_at_the_fifth)
    result = run_policy(config_for(tmp_path, offered), offered, runner=RUNNER)
    assert result.run.interrupted
    assert result.engine_error is None
    assert len(result.run.outcomes) == 5
    assert result.run.outcomes[-1].status == "cancelled"


@pytest.fixture
def toy_bench(monkeypatch, tmp_path):
    """`superinfer bench` with the toy model in the place of a real one."""
    config = toy_config(tmp_path, step_s=0.01)

    monkeypatch.setattr(plan, "resolve_model", lambda name, progress: ModelSource(name, tmp_path, True))
    monkeypatch.setattr(plan, "ensure_profile", lambda *args, **options: config.profile_path)
    monkeypatch.setattr(plan, "load_profile", lambda path: load_profile(tmp_path / "profile.json"))
    monkeypatch.setattr(plan, "_encoder", lambda source, profile: ENCODE)

    def run_toy(engine_config, load):
        engine_config.model_dir = "toy:0.01"
        return run_policy(engine_config, load, runner=RUNNER)

    monkeypatch.setattr(session, "run_policy", run_toy)

    def bench(*arguments):
        return CliRunner().invoke(app, ["bench", *arguments])

    return bench


def test_the_command_prints_only_json_and_writes_the_run_folder(toy_bench, tmp_path):
    out = tmp_path / "run"
    result = toy_bench(
        "mixed",
        "--requests",
        "20",
        "--rate",
        "40",
        "--policy",
        "slack",
        "--policy",
        "fcfs",
        "--out",
        str(out),
        "--json",
    )
    assert result.exit_code == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary == json.loads((out / "summary.json").read_text())
    assert [run["policy"] for run in summary["runs"]] == ["slack", "fcfs"]
    assert all(run["offered"] == run["completed"] == 20 for run in summary["runs"])
    assert summary["token_agreement"] == {"compared": 20, "equal": 20}
    assert (out / "report.html").exists()
    assert (out / "attainment.png").exists()


def test_the_command_shows_a_table_and_where_the_run_lies(toy_bench, tmp_path):
    out = tmp_path / "run"
    result = toy_bench("jitter", "--requests", "20", "--rate", "40", "--policy", "fcfs", "--out", str(out))
    assert result.exit_code == 0, result.stderr
    assert "hospital-core-emergency-triage-long" in result.stdout
    assert "fcfs" in result.stdout
    assert str(out) in result.stderr


def test_domains_of_several_kinds_serve_who_permits_them_and_the_report_says_who_ran_where(
    toy_bench, tmp_path, monkeypatch
):
    profiles = {dtype: write_profile(tmp_path / f"{dtype}.json", 0.01) for dtype in ("float32", "int8")}
    monkeypatch.setattr(domain_kinds, "ensure_profile", lambda source, dtype, **options: profiles[dtype])
    scenario = tmp_path / "mix.yaml"
    scenario.write_text(
        "{name: mix, requests: 60, rate_rps: 60, classes: ["
        "{service_id: strict, share: 1, prompt_tokens: 8, output_tokens: 12, slo: {latency_ms: 5000}}, "
        "{service_id: lax, share: 1, prompt_tokens: 8, output_tokens: 12, slo: {latency_ms: 5000}, "
        "precision_loss_allowed: true}]}"
    )
    kinds = ("--dtype", "float32", "--domain-kind", "float32=1", "--domain-kind", "int8=1")
    out = tmp_path / "run"
    result = toy_bench(str(scenario), *kinds, "--policy", "slack", "--out", str(out))
    assert result.exit_code == 0, result.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert summary["domains"] == 2
    assert summary["domain_kinds"] == {"0": "float32", "1": "int8"}
    strict, lax = (summary["runs"][0]["contracts"][name]["served_by"] for name in ("strict", "lax"))
    assert (strict["float32"]["requests"], strict["int8"]["requests"]) == (30, 0)
    assert lax["float32"]["requests"] + lax["int8"]["requests"] == 30
    assert lax["int8"]["met"] == lax["int8"]["requests"] > 0
    assert "slack: strict ran on float32 30 (30 met), int8 0 (0 met)" in result.stdout
    assert summary["clairvoyant_bound"] is None
