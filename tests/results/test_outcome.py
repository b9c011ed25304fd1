from __future__ import annotations

import msgspec
import pytest

from superinfer.profiler.latency_model import LatencyModel
from superinfer.results.outcome import blame_stage, hash_tokens, judge, unloaded_stages_ms


def test_latency_and_first_token_count_from_the_scheduled_time_not_from_the_late_send(contract, measurement):
    late = measurement(scheduled_s=2.0, sent_s=2.8, e2e_s=1.2, ttft_s=0.9)
    outcome = judge(late, contract(1000.0))
    assert outcome.e2e_ms == pytest.approx(1200)
    assert outcome.ttft_ms == pytest.approx(900)
    assert outcome.status == "missed"


def test_a_request_at_its_bound_is_met_and_just_beyond_is_missed(contract, measurement):
    exactly = measurement(scheduled_s=0.0, e2e_s=1.0)
    assert judge(exactly, contract(1000.0)).status == "met"
    assert judge(exactly, contract(999.9)).status == "missed"


@pytest.mark.parametrize(
    ("bounds", "violated"),
    [
        ({"latency_ms": 600.0, "ttft_ms": 200.0, "tpot_ms": 50.0}, []),
        ({"latency_ms": 600.0, "ttft_ms": 50.0}, ["ttft"]),
        ({"latency_ms": None, "tpot_ms": 30.0}, ["tpot"]),
        ({"latency_ms": 400.0, "ttft_ms": 50.0, "tpot_ms": 30.0}, ["latency", "ttft", "tpot"]),
    ],
)
def test_a_request_is_met_only_when_it_holds_every_bounded_milestone(contract, measurement, bounds, violated):
    outcome = judge(measurement(e2e_s=0.5, ttft_s=0.1), contract(**bounds))
    assert outcome.tpot_ms == pytest.approx(40.0)
    assert outcome.violated == violated
    assert outcome.status == ("missed" if violated else "met")


def test_a_single_token_has_no_time_per_token_and_holds_that_bound(contract, measurement):
    outcome = judge(measurement(output_tokens=1), contract(None, tpot_ms=0.001))
    assert outcome.tpot_ms is None
    assert outcome.status == "met"


@pytest.mark.parametrize("end", ["rejected", "cancelled", "failed"])
def test_what_did_not_complete_has_that_status_and_no_latency(contract, measurement, end):
    outcome = judge(measurement(end=end), contract(1e9))
    assert outcome.status == end
    assert outcome.e2e_ms is None
    assert outcome.missed_stage is None


def test_a_best_effort_request_that_completes_is_met(contract, measurement):
    outcome = judge(measurement(e2e_s=1e6), contract(None))
    assert outcome.status == "met"
    assert outcome.best_effort


def test_the_stage_with_the_largest_excess_is_blamed_not_the_longest(contract, measurement):
    slow = measurement(e2e_s=2.0, stages_ms={"queue": 600.0, "prefill": 100.0, "decode": 1300.0})
    outcome = judge(slow, contract(1000.0), {"prefill": 90.0, "decode": 1000.0})
    assert outcome.missed_stage == "queue"
    assert judge(slow, contract(1000.0)).missed_stage == "decode"


def test_a_missed_first_token_is_never_blamed_on_decode():
    stages = {"queue": 50.0, "prefill": 100.0, "decode": 9000.0}
    assert blame_stage(stages, {"prefill": 80.0}, ["ttft"]) == "queue"
    assert blame_stage(stages, {"prefill": 80.0}, ["tpot"]) == "decode"


def test_unloaded_stages_add_up_to_the_models_unloaded_time():
    model = LatencyModel(0.01, [(1, 0.02), (256, 0.8)], 1e-6, 1e-4, 1e-7, 1e-4, 1e-4)
    stages = unloaded_stages_ms(model, 100, 20)
    assert sum(stages.values()) == pytest.approx(model.unloaded_s(100, 20) * 1e3)


def test_token_hashes_differ_for_other_tokens_another_order_and_merged_digits():
    sequences = [[], [1, 2, 3], [3, 2, 1], [12, 3], [1, 23], [123]]
    assert len({hash_tokens(sequence) for sequence in sequences}) == len(sequences)
    assert hash_tokens([1, 2, 3]) == hash_tokens((1, 2, 3))


def test_an_outcome_survives_its_json_line(outcome):
    first = outcome(3)
    line = msgspec.json.encode(first)
    assert msgspec.json.decode(line, type=type(first)) == first
