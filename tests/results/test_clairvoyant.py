"""The clairvoyant bound against brute force on small cases, and its sense on whole loads."""

from __future__ import annotations

import io
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from superinfer.contracts.contract import Bound, SLOContract
from superinfer.profiler.latency_model import LatencyModel
from superinfer.results.clairvoyant import (
    Job,
    Offer,
    allowed_s,
    clairvoyant_bound,
    least_work_s,
    serve,
    tight_contracts,
)
from superinfer.results.summary import summarize
from superinfer.results.table import render_table

MODEL = LatencyModel(
    launch_s=0.002,
    linear_points=[(1, 0.05), (8, 0.068), (32, 0.145), (128, 0.4), (256, 0.83)],
    decode_context_s=4e-6,
    decode_s=5e-4,
    prefill_pair_s=3e-7,
    chunk_s=2e-3,
    row_s=1e-3,
)
CONTRACTS = {
    "triage": SLOContract(service_id="triage", latency=(Bound(0.99, 2400.0),)),
    "report": SLOContract(service_id="report", latency=(Bound(0.99, 21000.0),)),
    "chat": SLOContract(service_id="chat", ttft=(Bound(0.99, 500.0),), tpot=(Bound(0.99, 100.0),)),
    "best": SLOContract(service_id="best"),
}

small = st.tuples(st.integers(0, 12), st.integers(1, 5), st.integers(1, 14))


def job(arrival: float, work: float, allowed: float, *, is_tight: bool = False) -> Job:
    return Job(arrival, work, alone_s=work, deadline_s=arrival + allowed, is_tight=is_tight)


def free_slots(tight: list[Job]) -> list[int]:
    """Unit slots of one device that tight jobs, served first, leave."""
    left = {i: int(each.work_s) for i, each in enumerate(tight)}
    free = []
    for slot in range(80):
        due = [i for i, each in enumerate(tight) if each.arrival_s <= slot and left[i]]
        if due:
            left[due[0]] -= 1
        else:
            free.append(slot)
    return free


def feasible(jobs: tuple[Job, ...], slots: list[int]) -> bool:
    """Whether all of them meet their deadlines in these slots: preemptive earliest deadline first finds out."""
    left = [int(each.work_s) for each in jobs]
    for slot in slots:
        if any(left[i] and each.deadline_s <= slot for i, each in enumerate(jobs)):
            return False
        if not any(left):
            break
        due = [i for i, each in enumerate(jobs) if each.arrival_s <= slot and left[i]]
        if due:
            left[min(due, key=lambda i: jobs[i].deadline_s)] -= 1
    return not any(left)


def most_met(loose: list[Job], tight: list[Job]) -> int:
    slots = free_slots(tight)
    return max(n for n in range(len(loose) + 1) if any(feasible(subset, slots) for subset in combinations(loose, n)))


@given(st.lists(small, max_size=6), st.lists(small, max_size=3))
@settings(max_examples=100, deadline=None)
def test_never_more_loose_jobs_are_met_than_the_best_of_all_schedules_could(
    loose: list[tuple[int, int, int]], tight: list[tuple[int, int, int]]
) -> None:
    loose_jobs, tight_jobs = [job(*each) for each in loose], [job(*each, is_tight=True) for each in sorted(tight)]
    met = serve([*tight_jobs, *loose_jobs], capacity=1.0)
    assert all(met[: len(tight_jobs)])
    assert sum(met[len(tight_jobs) :]) <= most_met(loose_jobs, tight_jobs)


@given(st.lists(st.integers(1, 6), max_size=7), st.integers(1, 20), st.lists(small, max_size=2))
@settings(max_examples=100, deadline=None)
def test_as_many_are_met_as_possible_where_one_contracts_requests_wait_together(
    works: list[int], allowed: int, tight: list[tuple[int, int, int]]
) -> None:
    loose = [job(0, work, allowed) for work in works]
    tight_jobs = [job(*each, is_tight=True) for each in sorted(tight)]
    met = serve([*tight_jobs, *loose], capacity=1.0)
    assert sum(met[len(tight_jobs) :]) == most_met(loose, tight_jobs)


def test_a_job_goes_no_faster_than_alone_and_leaves_the_rest_to_others() -> None:
    slow = Job(arrival_s=0.0, work_s=1.0, alone_s=4.0, deadline_s=4.0)
    assert serve([slow] * 4, capacity=1.0) == [True] * 4
    assert sum(serve([slow] * 5, capacity=1.0)) == 4
    assert serve([Job(0.0, 1.0, 4.0, 3.9)], capacity=1.0) == [False]
    assert serve([slow] * 8, capacity=2.0) == [True] * 8


def test_tight_contracts_are_those_near_the_tightest_unless_all_are() -> None:
    offers = [Offer(name, 0.0, 10, 11) for name in ("triage", "report", "chat")]
    assert allowed_s(CONTRACTS["chat"], 11) == pytest.approx(1.5)
    assert tight_contracts(offers, CONTRACTS) == {"triage", "chat"}
    assert tight_contracts(offers[:1], CONTRACTS) == set()


def test_work_falls_with_the_time_allowed_and_never_exceeds_the_time_alone() -> None:
    offer = Offer("report", 0.0, 200, 48)
    works = [least_work_s(offer, allowed, MODEL, 64) for allowed in (3.0, 6.0, 12.0, 60.0)]
    assert works == sorted(works, reverse=True)
    assert works[-1] < works[0] <= MODEL.unloaded_s(200, 48)


def load(rate_rps: float, count: int = 400) -> list[Offer]:
    return [
        Offer("report", i / rate_rps, 220, 48) if i % 10 < 3 else Offer("triage", i / rate_rps, 44, 12)
        for i in range(count)
    ]


def test_a_light_load_is_met_whole_and_a_heavier_one_costs_loose_requests_only() -> None:
    attained = [clairvoyant_bound(load(rate), CONTRACTS, MODEL) for rate in (0.5, 2.0, 4.0, 8.0)]
    assert attained[0].attainment == 1.0
    assert all(bound.contracts["triage"] == 1.0 for bound in attained)
    shares = [bound.contracts["report"] for bound in attained]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < 0.5
    two = clairvoyant_bound(load(8.0), CONTRACTS, MODEL, domains=2)
    assert two.contracts["report"] > shares[-1]


def test_a_load_without_promises_has_no_bound() -> None:
    assert clairvoyant_bound([Offer("best", 0.0, 10, 10)], CONTRACTS, MODEL) is None


def test_the_table_shows_the_bound_below_the_policies() -> None:
    bound = {"attainment": 0.985, "contracts": {"triage": 1.0, "report": 0.95}}
    summary = summarize(
        [], scenario="mixed", model="tiny", device="cpu", simulated=False, extra={"clairvoyant_bound": bound}
    )
    console = Console(width=100, file=io.StringIO())
    console.print(render_table(summary))
    assert "clairvoyant bound 98.5 %: triage 100.0 %, report 95.0 %" in console.file.getvalue()
