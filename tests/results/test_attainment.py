from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from superinfer.contracts.contract import Bound, SLOContract
from superinfer.results.attainment import (
    attainment,
    check_bounds,
    distribution,
    missed_by_stage,
    wilson_interval,
)

COUNTS = st.integers(1, 5000).flatmap(lambda offered: st.tuples(st.integers(0, offered), st.just(offered)))
ENDS = st.lists(st.sampled_from(["met", "missed", "rejected", "cancelled", "failed"]), max_size=40)


@given(COUNTS)
def test_the_interval_holds_the_share_and_stays_within_0_and_1(counts):
    met, offered = counts
    low, high = wilson_interval(met, offered)
    assert 0.0 <= low <= met / offered <= high <= 1.0
    assert low < high


@given(COUNTS)
def test_the_interval_of_misses_mirrors_that_of_hits(counts):
    met, offered = counts
    low, high = wilson_interval(met, offered)
    mirrored = wilson_interval(offered - met, offered)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-12)


@given(COUNTS)
def test_four_times_the_requests_narrow_the_interval(counts):
    met, offered = counts
    low, high = wilson_interval(met, offered)
    low4, high4 = wilson_interval(4 * met, 4 * offered)
    assert high4 - low4 < high - low


def test_the_interval_has_the_textbook_value():
    # Newcombe (1998), table I: 81 of 263 gives 0.2553 to 0.3662; 0 of 20 gives 0 to 0.1611.
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson_interval(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)


@pytest.mark.parametrize(("met", "offered"), [(1, 0), (0, 0), (3, 2), (-1, 2)])
def test_impossible_counts_are_an_error(met, offered):
    with pytest.raises(ValueError, match="offered"):
        wilson_interval(met, offered)


def outcomes_of(outcome, ends):
    made = []
    for number, end in enumerate(ends):
        if end in ("met", "missed"):
            made.append(outcome(number, e2e_s=0.5 if end == "met" else 1.5, stages_ms={"queue": 900.0}))
        else:
            made.append(outcome(number, end=end))
    return made


@given(ends=ENDS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_met_and_missed_by_stage_add_up_to_all_offered(outcome, ends):
    outcomes = outcomes_of(outcome, ends)
    reached = attainment(outcomes)
    assert reached.offered == len(ends)
    assert reached.met == ends.count("met")
    assert reached.met + sum(missed_by_stage(outcomes).values()) == reached.offered


def test_errors_refusals_and_cancellations_are_misses(outcome):
    outcomes = outcomes_of(outcome, ["met", "met", "missed", "rejected", "failed", "cancelled"])
    assert attainment(outcomes).share == pytest.approx(2 / 6)
    assert missed_by_stage(outcomes) == {"queue": 1, "rejected": 1, "failed": 1, "cancelled": 1}


def test_best_effort_requests_count_neither_way(outcome, contract):
    free = outcome(bound=contract(None))
    assert attainment([free]).share is None
    assert attainment([free]).ci95 is None
    assert attainment([free, outcome(1)]).offered == 1


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_the_distribution_is_ordered_and_agrees_with_numpy(values):
    figures = distribution([*values, None])
    assert figures.p50 == pytest.approx(np.percentile(values, 50))
    assert min(values) <= figures.p50 <= figures.p95 <= figures.p99 <= figures.max == max(values)
    expected_std = np.std(values, ddof=1) if len(values) > 1 else 0.0
    assert figures.std == pytest.approx(expected_std)


def test_a_distribution_of_nothing_has_no_figures():
    figures = distribution([None])
    assert figures.p50 is figures.mean is figures.std is None


def test_each_bound_is_checked_at_its_own_percentile_over_all_offered(outcome):
    contract = SLOContract(service_id="triage", latency=(Bound(0.5, 600.0), Bound(0.99, 1000.0)))
    outcomes = outcomes_of(outcome, ["met", "met", "missed", "rejected"])
    half, most = check_bounds(contract, outcomes)
    assert (half.within, half.held) == (0.5, True)
    assert (most.within, most.held) == (0.5, False)
