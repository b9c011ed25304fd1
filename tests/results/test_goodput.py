from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superinfer.contracts.contract import Bound, SLOContract
from superinfer.results.goodput import contested_s, decided_s, goodput_rps
from superinfer.results.outcome import Measurement, judge


def test_lost_requests_that_end_after_all_others_do_not_lower_goodput(outcome):
    met = [outcome(number, scheduled_s=float(number), e2e_s=0.5) for number in range(9)]
    lost = outcome(9, scheduled_s=2.0, e2e_s=40.0)
    assert lost.status == "missed"
    assert contested_s([*met, lost], 42.0) == 8.5
    assert goodput_rps([*met, lost], 42.0) == pytest.approx(9 / 8.5)


def test_a_request_counts_until_the_bound_that_it_misses(outcome, contract):
    assert decided_s(outcome(scheduled_s=2.0, e2e_s=9.0)) == 3.0
    first = contract(None, ttft_ms=200.0)
    assert decided_s(outcome(scheduled_s=2.0, ttft_s=0.4, e2e_s=9.0, bound=first)) == pytest.approx(2.2)
    paced = contract(None, tpot_ms=50.0)
    assert decided_s(outcome(scheduled_s=2.0, ttft_s=0.4, e2e_s=9.0, bound=paced)) == pytest.approx(2.4 + 10 * 0.05)


def test_one_that_is_refused_counts_until_it_is_refused_and_best_effort_until_its_end(outcome, contract):
    assert decided_s(outcome(scheduled_s=2.0, end="rejected", finish_s=2.1)) == 2.1
    assert decided_s(outcome(scheduled_s=2.0, end="failed")) == 3.0
    assert decided_s(outcome(scheduled_s=2.0, e2e_s=30.0, bound=contract(None))) == 32.0


def test_a_run_in_which_nothing_says_when_is_as_long_as_it_was(outcome, contract):
    assert contested_s([outcome(end="cancelled", bound=contract(None))], 7.0) == 7.0
    assert goodput_rps([], 0.0) == 0.0


@given(st.lists(st.tuples(st.floats(0.0, 50.0), st.floats(0.01, 20.0)), min_size=1, max_size=30))
def test_goodput_is_at_least_what_the_whole_duration_gives(requests):
    contract = SLOContract(service_id="triage", latency=(Bound(0.99, 1000.0),))
    outcomes = [judge(completed(*request), contract) for request in requests]
    duration_s = max(each.finish_s for each in outcomes)
    met = [each for each in outcomes if each.status == "met"]
    assert goodput_rps(outcomes, duration_s) >= len(met) / duration_s
    assert all(each.finish_s <= contested_s(outcomes, duration_s) for each in met)


def completed(scheduled_s, e2e_s):
    return Measurement(
        request_id="r",
        service_id="triage",
        scheduled_s=scheduled_s,
        sent_s=scheduled_s,
        first_token_s=scheduled_s + 0.01,
        finish_s=scheduled_s + e2e_s,
        prompt_tokens=32,
        output_tokens=11,
        end="completed",
    )
