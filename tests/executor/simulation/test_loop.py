"""The virtual clock: arrivals, steps, rotation over the host link, domains that die and come back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_model import MODEL

from superinfer.contracts.contract import Bound, SLOContract
from superinfer.executor.simulation.faults import DomainFault
from superinfer.executor.simulation.loop import Simulation, simulate
from superinfer.scheduler.config import DomainSpec, SchedulerConfig
from superinfer.scheduler.request import Request, SamplingParams

CONTRACTS = [SLOContract(service_id="chat", latency=(Bound(0.99, 5000.0),))]


def request(number: int, arrival_s: float, prompt: int = 20, outputs: int = 6) -> Request:
    return Request(
        request_id=f"r{number}",
        contract_id="chat",
        prompt_token_ids=[0] * prompt,
        sampling=SamplingParams(max_tokens=outputs, ignore_eos=True),
        arrival_s=arrival_s,
    )


def run(requests: list[Request] | Iterator[Request], policy: str = "fcfs", **options: object) -> Simulation:
    config = SchedulerConfig(policy=policy, host_blocks=int(options.pop("host_blocks", 0)))  # type: ignore[call-overload]
    return simulate(requests, contracts=CONTRACTS, model=MODEL, config=config, **options)  # type: ignore[arg-type]


def test_a_lone_request_takes_its_unloaded_time() -> None:
    (fate,) = run([request(0, 3.0)]).requests
    assert fate.arrival_s == 3.0
    assert fate.first_token_s - 3.0 == pytest.approx(MODEL.prefill_s(0, 20))
    assert fate.finished_s - 3.0 == pytest.approx(MODEL.unloaded_s(20, 6), rel=1e-3)
    assert fate.longest_gap_s == pytest.approx(MODEL.decode_step_s(25), rel=1e-3)
    assert sum(getattr(fate.stages, f"{s}_s") for s in ("queue", "prefill", "decode")) == pytest.approx(
        fate.finished_s - fate.arrival_s
    )
    assert (fate.output_tokens, fate.reason, fate.met) == (6, "length", True)


def test_requests_are_read_as_the_clock_moves_on() -> None:
    ends: list[float] = []

    def later() -> Iterator[Request]:
        yield request(0, 0.0)
        yield request(1, 100.0)

    result = run(later(), on_progress=lambda done, now: ends.append(now))
    assert [fate.request_id for fate in result.requests] == ["r0", "r1"]
    assert result.requests[0].finished_s < 100.0 < result.requests[1].finished_s
    with pytest.raises(ValueError, match=r"r0 arrives at 1\.0, before 2\.0"):
        run(iter([request(1, 2.0), request(0, 1.0)]))


def test_a_refused_request_says_why_and_costs_nothing() -> None:
    result = run([request(0, 0.0, prompt=5000), request(1, 0.0)])
    refused, served = result.requests
    assert "exceed the context" in (refused.refusal or "")
    assert (refused.reason, refused.output_tokens) == (None, 0)
    assert served.met


def test_copies_over_the_host_link_lengthen_the_steps_that_rotate() -> None:
    requests = [request(i, 0.3 * i, 64, 60) for i in range(12)]
    memory = {"kv_blocks": 30, "host_blocks": 400}
    free = run(list(requests), "vlt", **memory)
    paid = run(list(requests), "vlt", block_copy_s=0.01, **memory)
    none = run(list(requests), "vlt", block_copy_s=0.01, kv_blocks=4000)
    assert sum(free.requests.stages[3]) > 0
    assert paid.duration_s > free.duration_s + 0.1
    assert none.duration_s == run(list(requests), "vlt", kv_blocks=4000).duration_s


def test_what_arrives_after_the_next_step_was_planned_waits_for_a_step_more() -> None:
    ends = [fate.first_token_s for fate in run([request(0, 0.0, outputs=n) for n in (1,)]).requests]
    first_end_s = ends[0]
    late, early = request(1, first_end_s - 0.002), request(1, first_end_s - 0.006)
    waits = {
        name: run([request(0, 0.0, outputs=40), each], lead_s=lead_s).requests[1].first_token_s
        for name, each, lead_s in (("late", late, 0.004), ("early", early, 0.004), ("unplanned", late, None))
    }
    decode_s = MODEL.decode_step_s(21)
    assert waits["early"] == pytest.approx(waits["unplanned"])
    assert waits["late"] - waits["unplanned"] == pytest.approx(decode_s, rel=1e-3)


@pytest.mark.parametrize("policy", ["slack", "fcfs", "vlt"])
def test_planning_ahead_loses_and_repeats_nothing(policy: str) -> None:
    requests = [request(i, 0.15 * i, 30 + 7 * (i % 9), 3 + i % 11) for i in range(60)]
    faults = [DomainFault(time_s=3.0, domain_id="domain-1", restart_s=2.0)]
    result = run(requests, policy, domains=2, kv_blocks=60, host_blocks=200, sigma=0.2, lead_s=0.004, faults=faults)
    assert [fate.output_tokens for fate in result.requests] == [r.sampling.max_tokens for r in requests]
    assert all(fate.reason == "length" for fate in result.requests)


SPECS = [DomainSpec("a", 500), DomainSpec("b", 500)]


def test_requests_of_a_dead_domain_move_to_another_and_all_complete() -> None:
    requests = [request(i, 0.1 * i, outputs=30) for i in range(60)]
    result = run(requests, domains=SPECS, faults=[DomainFault(3.0, "a", restart_s=2.0)])
    (record,) = result.faults
    moved = [fate for fate in result.requests if len(fate.domain_ids) > 1]
    assert record.moved_requests == len(moved) > 0
    assert all(fate.domain_ids[0] == "a" and fate.stages.migration_s > 0 for fate in moved)
    assert record.detected_s == pytest.approx(3.005)
    assert record.ready_s == pytest.approx(5.0)
    assert set(record.open_rows) >= {int(fate.request_id[1:]) for fate in moved}
    assert all((fate.reason, fate.output_tokens) == ("length", 30) for fate in result.requests)
    late = [fate for fate in result.requests if fate.first_token_s > 5.5]
    assert any("a" in fate.domain_ids for fate in late)


def test_with_no_other_domain_requests_wait_for_the_restart() -> None:
    result = run([request(0, 0.0, outputs=30)], faults=[DomainFault(0.5, "domain-0", restart_s=7.0)])
    (fate,) = result.requests
    assert fate.finished_s > 7.5
    assert fate.output_tokens == 30
    assert fate.longest_gap_s >= 7.0


def test_the_run_ends_with_its_last_request_not_with_a_restart() -> None:
    result = run([request(0, 0.0)], domains=SPECS, faults=[DomainFault(0.0, "b", restart_s=1000.0)])
    assert result.duration_s < 2.0


@settings(max_examples=15, deadline=None)
@given(
    arrivals=st.lists(st.tuples(st.floats(0, 8), st.integers(1, 90), st.integers(1, 12)), min_size=1, max_size=25),
    faults=st.lists(st.tuples(st.floats(0, 10), st.sampled_from("ab"), st.floats(0, 3)), max_size=2),
    policy=st.sampled_from(["fcfs", "slack", "vlt"]),
)
def test_every_request_completes_once_whatever_dies_and_when(
    arrivals: list[tuple[float, int, int]], faults: list[tuple[float, str, float]], policy: str
) -> None:
    requests = [request(i, *each) for i, each in enumerate(sorted(arrivals))]
    struck = [DomainFault(at, domain, restart_s) for at, domain, restart_s in faults]
    result = run(requests, policy, domains=SPECS, faults=struck, sigma=0.1)
    assert len(result.requests) == len(requests)
    for fate in result.requests:
        assert fate.reason == "length"
        assert fate.output_tokens == fate.max_tokens
        assert fate.arrival_s < fate.first_token_s <= fate.last_token_s == fate.finished_s
