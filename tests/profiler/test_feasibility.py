from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superinfer.contracts.contract import Bound, SLOContract, best_effort_contract
from superinfer.profiler.feasibility import (
    UnattainableContractError,
    check_bounds,
    percentile_digits,
    shortfalls,
    unloaded_ms,
)
from superinfer.profiler.latency_model import LatencyModel

MODEL = LatencyModel(
    launch_s=0.001,
    linear_points=[(1, 0.004), (101, 0.104)],
    decode_context_s=1e-5,
    decode_s=0.0,
    prefill_pair_s=0.0,
    chunk_s=0.0,
    row_s=0.0,
)


def test_the_unloaded_times_are_those_of_the_latency_model() -> None:
    assert unloaded_ms(MODEL, 1, 1) == pytest.approx({"latency": 5.0, "ttft": 5.0, "tpot": 5.02})
    long = unloaded_ms(MODEL, 101, 11)
    assert long["ttft"] == pytest.approx(105.0)
    assert long["tpot"] == pytest.approx(5.0 + 0.01 * (102 + 5))
    assert long["latency"] == pytest.approx(long["ttft"] + 10 * long["tpot"])


def test_a_bound_below_the_unloaded_time_is_named_with_the_figure() -> None:
    contract = SLOContract(service_id="a", ttft=(Bound(0.95, 4.9), Bound(0.99, 5.1)))
    [short] = shortfalls([contract], MODEL)
    assert (short.contract_id, short.milestone, short.percentile) == ("a", "ttft", 0.95)
    assert str(short) == (
        "contract 'a': ttft p95 4.9 ms is below the 5 ms that a prompt of 1 token takes alone on this device"
    )
    error = UnattainableContractError([short, short])
    assert str(error).endswith("(and 1 more); raise the bound, or accept it with --allow-unattainable")
    assert error.exit_code == 4


def test_the_request_size_decides() -> None:
    contract = SLOContract(service_id="a", latency=(Bound(0.99, 100.0),), tpot=(Bound(0.5, 5.5),))
    assert shortfalls([contract], MODEL) == []
    assert [(short.milestone, short.prompt_tokens) for short in shortfalls([contract], MODEL, 101, 11)] == [
        ("latency", 101),
        ("tpot", 101),
    ]


def test_sub_tasks_are_checked_too_and_the_contract_is_left_as_it_is() -> None:
    sub = SLOContract(service_id="a/ask", tpot=(Bound(0.999, 5.0),))
    contract = SLOContract(service_id="a", latency=(Bound(0.99, 100.0),), sub_slos={"ask": sub})
    [short] = shortfalls([contract], MODEL)
    assert str(short).startswith("contract 'a/ask': tpot p999 5 ms is below the 5.02 ms that each further token")
    assert contract.sub_slos["ask"].tpot == (Bound(0.999, 5.0),)


def test_best_effort_promises_nothing_that_could_fall_short() -> None:
    assert check_bounds(best_effort_contract(), MODEL) == []


@pytest.mark.parametrize(
    ("percentile", "digits"), [(0.5, "50"), (0.9, "90"), (0.95, "95"), (0.99, "99"), (0.999, "999")]
)
def test_percentiles_are_written_as_in_contracts(percentile: float, digits: str) -> None:
    assert percentile_digits(percentile) == digits


@given(st.integers(1, 3000), st.integers(1, 300))
def test_no_request_takes_less_than_one_token_in_and_one_out(prompt: int, output: int) -> None:
    least, some = unloaded_ms(MODEL, 1, 1), unloaded_ms(MODEL, prompt, output)
    assert all(
        some[milestone] >= least[milestone] or math.isclose(some[milestone], least[milestone]) for milestone in some
    )
