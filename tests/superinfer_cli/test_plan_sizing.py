"""`superinfer contracts plan --size`: how many devices, what batch, and the simulator's verdict."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from superinfer.cli.contracts import app
from superinfer.cli.plan_sizing import MOST_REQUESTS, REQUESTS_OF_THE_RAREST, largest_batch, planned_load
from superinfer.contracts.contract import Bound, SLOContract
from superinfer.contracts.errors import ContractError, UsageError
from superinfer.profiler.data_sheet import data_sheet
from superinfer.profiler.known_architectures import known_architectures
from superinfer.profiler.latency_model import StepShape
from superinfer.profiler.roofline import roofline_model
from superinfer.scheduler.topology import OfferedLoad

MODEL = roofline_model(known_architectures()["llama-3-8b"], data_sheet("H100-SXM5"))
LOADS = {
    "chat": OfferedLoad(rate_per_s=20, prompt_tokens=200, output_tokens=40),
    "rare": OfferedLoad(rate_per_s=2, prompt_tokens=1000, output_tokens=10),
}
CONTRACTS = "- {service_id: chat, latency_p95_ms: 1500}\n- {service_id: rare, latency_p95_ms: 1500}\n"
TOPOLOGY = """
name: small
nodes: [{name: n, devices: [{name: d, count: 4, type: H100-SXM5}]}]
demands:
  chat: {rate_per_s: RATE, prompt_tokens: 1500, output_tokens: 40}
  rare: {rate_per_s: 5, prompt_tokens: 1000, output_tokens: 4}
"""


def contract(name: str, **bounds: float) -> SLOContract:
    return SLOContract(
        service_id=name,
        **{milestone: (Bound(percentile=0.95, bound_ms=value),) for milestone, value in bounds.items()},
    )


@pytest.mark.parametrize("tpot_ms", [10.0, 12.0, 20.0])
def test_the_batch_is_the_largest_that_holds_every_bound(tpot_ms: float) -> None:
    contracts = {"chat": contract("chat", tpot=tpot_ms), "rare": contract("rare", latency=5000.0)}
    batch = largest_batch(LOADS, contracts, MODEL, kv_tokens=10**9, most=4096)
    assert 1 <= batch < 4096

    def step_ms(size: int) -> float:
        weights = {name: load.rate_per_s * load.output_tokens for name, load in LOADS.items()}
        context = sum(
            (load.prompt_tokens + load.output_tokens / 2) * weights[name] for name, load in LOADS.items()
        ) / sum(weights.values())
        shape = StepShape(tokens=size, decodes=size, decode_context=round(size * context), rows=size)
        return 1e3 * MODEL.step_s(shape)

    assert step_ms(batch) <= tpot_ms < step_ms(batch + 1)


def test_the_batch_keeps_to_memory_and_to_what_one_sequence_takes() -> None:
    loose: Mapping[str, SLOContract] = {name: contract(name, latency=60_000.0) for name in LOADS}
    assert largest_batch(LOADS, loose, MODEL, kv_tokens=1000, most=4096) == 4
    assert largest_batch(LOADS, loose, MODEL, kv_tokens=10**9, most=64) == 64
    tight = {**loose, "rare": contract("rare", ttft=1.0)}
    assert largest_batch(LOADS, tight, MODEL, kv_tokens=10**9, most=64) == 0


def test_the_load_has_the_rates_of_the_demands_and_enough_of_the_rarest() -> None:
    load = planned_load(LOADS, seed=1)
    assert REQUESTS_OF_THE_RAREST * 0.8 < int((load.class_numbers == 1).sum()) < REQUESTS_OF_THE_RAREST * 1.2
    assert list(load.offsets_s) == sorted(load.offsets_s)
    assert int((load.class_numbers == 0).sum()) / load.sending_s == pytest.approx(20, rel=0.1)
    assert set(load.prompt_tokens[load.class_numbers == 1]) == {1000}
    crowded = {"chat": OfferedLoad(rate_per_s=500, prompt_tokens=10, output_tokens=1), "rare": LOADS["rare"]}
    assert len(planned_load(crowded, seed=1)) < MOST_REQUESTS * 1.1
    assert list(planned_load(LOADS, seed=1).offsets_s) == list(load.offsets_s)


@pytest.fixture
def short_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("superinfer.cli.plan_sizing.LEAST_SECONDS", 10.0)
    monkeypatch.setattr("superinfer.cli.plan_sizing.REQUESTS_OF_THE_RAREST", 50)


def run(tmp_path: Path, rate: float, *more: str, contracts: str = CONTRACTS) -> Any:
    (tmp_path / "contracts.yaml").write_text(contracts)
    (tmp_path / "t.yaml").write_text(TOPOLOGY.replace("RATE", str(rate)))
    named = ["plan", str(tmp_path / "contracts.yaml"), "--topology", str(tmp_path / "t.yaml")]
    return CliRunner().invoke(app, [*named, "--model", "llama-3-8b", "--size", *more])


@pytest.mark.slow
@pytest.mark.usefixtures("short_loads")
def test_more_load_needs_more_devices_and_one_fewer_does_not_hold(tmp_path: Path) -> None:
    needed = []
    for rate in (5.0, 40.0):
        result = run(tmp_path, rate, "--json")
        assert result.exit_code == 0, result.exception
        sizing = json.loads(result.stdout)["sizing"]
        assert sizing["simulated"] is True
        needed.append(sizing["needed_devices"])
        shorter = [each for each in sizing["tried"] if each["devices"] < sizing["needed_devices"]]
        for each in shorter:
            assert not all(bound["held"] for one in each["contracts"] for bound in one["bounds"])
    assert needed[0] == 1
    assert needed[1] > needed[0]


@pytest.mark.slow
@pytest.mark.usefixtures("short_loads")
def test_the_answer_is_a_sentence_that_says_it_is_simulated_and_a_picture(tmp_path: Path) -> None:
    result = run(tmp_path, 5.0, "--out", str(tmp_path / "size.png"))
    assert "simulated: 1 of 4 devices hold all contracts" in result.stdout
    assert (tmp_path / "size.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.usefixtures("short_loads")
def test_a_cluster_that_is_too_small_names_who_falls_short(tmp_path: Path) -> None:
    result = run(tmp_path, 400.0)
    assert isinstance(result.exception, ContractError)
    assert "not even all 4 devices hold chat" in str(result.exception)


def test_a_measured_profile_sizes_nothing(tmp_path: Path) -> None:
    result = run(tmp_path, 5.0, "--profile", "x.json")
    assert isinstance(result.exception, UsageError)
    assert "give --model instead" in str(result.exception)
