"""Error budgets: what counts as a miss, how the window slides."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superinfer.contracts.contract import Bound, SLOContract
from superinfer.scheduler.budgets import Answer, BudgetBook, BudgetState

CONTRACT = SLOContract(
    service_id="a",
    latency=(Bound(0.5, 1000.0), Bound(0.9, 2000.0)),
    ttft=(Bound(0.9, 300.0),),
    tpot=(Bound(0.9, 50.0),),
    availability=0.99,
)
GOOD = Answer(latency_s=0.9, ttft_s=0.2, tpot_s=0.04)


def states(book: BudgetBook, now: float) -> dict[str, BudgetState]:
    return {state.objective: state for state in book.states("a", now)}


def test_each_percentile_of_each_milestone_has_its_own_account() -> None:
    book = BudgetBook(60.0)
    for answer in (*[GOOD] * 7, Answer(1.5, 0.2, 0.04), Answer(2.5, 0.4, 0.06), Answer(1.5, 0.2, None)):
        book.add("a", CONTRACT, answer, 1.0)
    found = states(book, 1.0)
    assert {name: state.missed for name, state in found.items()} == {
        "latency_p50": 3,
        "latency_p90": 1,
        "ttft_p90": 1,
        "tpot_p90": 1,
        "availability": 0,
    }
    assert found["latency_p50"].burned == pytest.approx(3 / 5)
    assert found["latency_p90"].burned == pytest.approx(1.0)
    assert all(state.requests == 10 for state in found.values())


def test_a_request_that_was_not_answered_misses_every_objective() -> None:
    book = BudgetBook(60.0)
    book.add("a", CONTRACT, None, 1.0)
    assert all(state.missed == 1 for state in book.states("a", 1.0))


def test_a_single_miss_among_few_requests_spends_the_budget_and_no_more() -> None:
    book = BudgetBook(60.0)
    for answer in (GOOD, GOOD, None):
        book.add("a", CONTRACT, answer, 1.0)
    assert states(book, 1.0)["availability"].burned == 1.0


def test_what_promises_nothing_has_no_budget() -> None:
    book = BudgetBook(60.0)
    book.add("none", SLOContract(service_id="none"), None, 1.0)
    assert book.states("none", 1.0) == []
    assert book.states("unknown", 1.0) == []


def test_new_terms_begin_a_new_account_and_a_new_version_with_the_same_terms_does_not() -> None:
    book = BudgetBook(60.0)
    book.add("a", CONTRACT, None, 1.0)
    book.add("a", SLOContract(service_id="a", version=2, latency=CONTRACT.latency, ttft=CONTRACT.ttft,
                              tpot=CONTRACT.tpot, availability=0.99), GOOD, 1.0)  # fmt: skip
    assert states(book, 1.0)["availability"].requests == 2
    book.add("a", SLOContract(service_id="a", version=3, availability=0.9), GOOD, 1.0)
    assert states(book, 1.0)["availability"].requests == 1


@given(st.lists(st.tuples(st.floats(0.0, 20.0), st.booleans()), max_size=60), st.floats(0.0, 100.0))
@settings(max_examples=50, deadline=None)
def test_the_window_holds_what_is_younger_and_forgets_what_is_older(
    gaps: list[tuple[float, bool]], after_s: float
) -> None:
    window_s, now = 60.0, 0.0
    book, history = BudgetBook(window_s), []
    for gap_s, is_good in gaps:
        now += gap_s
        history.append((now, is_good))
        book.add("a", CONTRACT, GOOD if is_good else None, now)
    now += after_s
    found = states(book, now)
    if not history:
        assert found == {}
        return
    slice_s = window_s / 60
    surely = [good for time_s, good in history if time_s > now - window_s + slice_s]
    at_most = [good for time_s, good in history if time_s > now - window_s - slice_s]
    assert len(surely) <= found["availability"].requests <= len(at_most)
    assert surely.count(False) <= found["availability"].missed <= at_most.count(False)
