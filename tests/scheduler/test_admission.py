"""Admission under load: who is refused, who falls back, and that refusing pays."""

from __future__ import annotations

import math
import random

import pytest

from superinfer.contracts.contract import BEST_EFFORT_ID, Bound, SLOContract
from superinfer.executor.simulated import SimulatedDevice
from superinfer.executor.simulation.loop import Simulation, simulate
from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.admission import ContractWork
from superinfer.scheduler.config import DomainSpec, SchedulerConfig
from superinfer.scheduler.fault_map import parse_fault_map
from superinfer.scheduler.request import Request, SamplingParams
from superinfer.scheduler.scheduler import Scheduler

MODEL = LatencyModel(
    launch_s=0.002,
    linear_points=[(1, 0.02), (64, 0.08), (256, 0.3)],
    decode_context_s=1e-6,
    decode_s=5e-4,
    prefill_pair_s=1e-7,
    chunk_s=1e-3,
    row_s=1e-3,
)
TIGHT = SLOContract(service_id="tight", latency=(Bound(0.99, 1500.0),), availability=0.9)
LOOSE = SLOContract(service_id="loose", latency=(Bound(0.99, 20_000.0),))
CHAT = SLOContract(
    service_id="chat", ttft=(Bound(0.9, 1000.0),), fallback_allowed=True, alternative_service="chat-basic"
)
BASIC = SLOContract(
    service_id="chat-basic", ttft=(Bound(0.9, 30_000.0),), fallback_allowed=True, alternative_service="chat"
)
SECOND_RATE = SLOContract(
    service_id="second", latency=(Bound(0.99, 1500.0),), fallback_allowed=True, alternative_service=BEST_EFFORT_ID
)
CONTRACTS = [TIGHT, LOOSE, CHAT, BASIC, SECOND_RATE]


def make_scheduler(domains: int = 1, **settings: object) -> Scheduler:
    config = SchedulerConfig(**{"admission": "refuse", "max_running": 16, **settings})  # type: ignore[arg-type]
    specs = [DomainSpec(f"domain-{number}", 4000) for number in range(domains)]
    return Scheduler(domains=specs, contracts=CONTRACTS, latency_model=MODEL.fresh(), config=config)


def request(name: str, contract_id: str, now: float, prompt: int = 100, outputs: int = 20) -> Request:
    return Request(
        request_id=name,
        contract_id=contract_id,
        prompt_token_ids=[1] * prompt,
        sampling=SamplingParams(max_tokens=outputs, ignore_eos=True),
        arrival_s=now,
    )


def add_until_refused(scheduler: Scheduler, contract_id: str, most: int = 500) -> int:
    """How many at once are admitted before the first refusal."""
    for number in range(most):
        if scheduler.add(request(f"{contract_id}-{number}", contract_id, 0.0), 0.0) is not None:
            return number
    return most


def test_a_full_house_refuses_with_a_time_to_come_again_and_leaves_only_a_count() -> None:
    scheduler = make_scheduler()
    admitted = add_until_refused(scheduler, "tight")
    assert 0 < admitted < 500
    late = request("late", "tight", 0.0)
    refusal = scheduler.add(late, 0.0)
    assert refusal is not None
    assert refusal.code == "overloaded"
    assert "'tight'" in refusal.message
    assert refusal.retry_after_s is not None
    assert 0.0 < refusal.retry_after_s <= 60.0
    assert late.contract_id == "tight"
    counts = scheduler.stats(0.0).contracts["tight"]
    assert (counts.waiting, counts.refused, counts.finished) == (admitted, 2, 0)
    assert {state.objective: state.missed for state in counts.budgets}["availability"] == 2


def test_after_the_time_it_was_told_a_refused_request_is_admitted() -> None:
    scheduler = make_scheduler()
    add_until_refused(scheduler, "tight")
    refusal = scheduler.add(request("again", "tight", 0.0), 0.0)
    assert refusal is not None
    assert refusal.retry_after_s is not None
    device, now = SimulatedDevice("domain-0", MODEL), 0.0
    while now < refusal.retry_after_s:
        plan = scheduler.plan("domain-0", now)
        if plan is None:
            break
        device.now = now
        result = device.execute(plan)
        now = result.finished_s
        scheduler.observe(result, now)
    assert scheduler.add(request("again", "tight", now), now) is None


def test_less_urgent_work_does_not_stand_in_the_way_of_more_urgent_work() -> None:
    scheduler = make_scheduler()
    alone = add_until_refused(make_scheduler(), "tight")
    assert add_until_refused(scheduler, "loose") > alone
    assert add_until_refused(scheduler, "tight") == alone


def test_more_domains_take_more_and_a_map_counts_only_those_of_the_contract() -> None:
    one, four = (add_until_refused(make_scheduler(domains), "tight") for domains in (1, 4))
    assert 3.5 * one < four < 4.5 * one + 4
    mapped = make_scheduler(4, fault_domains=parse_fault_map("tight: [domain-0]", "map"))
    assert add_until_refused(mapped, "tight") == one
    others = make_scheduler(4, fault_domains=parse_fault_map("tight: [domain-0]\nchat: [domain-1]", "map"))
    for number in range(100):
        others.add(request(f"chat-{number}", "chat", 0.0), 0.0)
    assert add_until_refused(others, "tight") == one


def test_nobody_is_refused_unless_asked_for() -> None:
    scheduler = make_scheduler(admission="accept")
    assert add_until_refused(scheduler, "tight", most=300) == 300


def test_what_could_not_make_it_on_an_idle_device_either_is_admitted() -> None:
    scheduler = make_scheduler()
    assert scheduler.add(request("long", "tight", 0.0, prompt=100, outputs=1000), 0.0) is None


def test_a_contract_falls_back_to_its_alternative_and_is_refused_only_when_that_is_full_too() -> None:
    scheduler = make_scheduler()
    served: list[str] = []
    for number in range(2000):
        one = request(f"r{number}", "chat", 0.0)
        refusal = scheduler.add(one, 0.0)
        if refusal is not None:
            assert refusal.code == "overloaded"
            assert "'chat'" in refusal.message
            break
        served.append(one.contract_id)
    assert refusal is not None
    turn = served.index("chat-basic")
    assert 0 < turn < len(served) - 1
    counts = scheduler.stats(0.0).contracts
    assert counts["chat"].fell_back == served.count("chat-basic")
    assert counts["chat"].refused == 1
    assert counts["chat-basic"].waiting == served.count("chat-basic")


def test_best_effort_is_never_refused_for_a_deadline_but_for_a_full_queue() -> None:
    scheduler = make_scheduler(max_waiting=30)
    assert add_until_refused(scheduler, BEST_EFFORT_ID) == 30
    refusal = scheduler.add(request("more", "", 0.0), 0.0)
    assert refusal is not None
    assert refusal.code == "queue_full"
    assert refusal.retry_after_s is not None
    assert refusal.retry_after_s > 0.0
    assert add_until_refused(scheduler, "tight") > 0
    assert add_until_refused(make_scheduler(), BEST_EFFORT_ID, most=300) == 300


def test_a_fallback_to_best_effort_counts_in_the_budget_of_the_contract_that_was_named() -> None:
    scheduler = make_scheduler()
    for number in range(100):
        assert scheduler.add(request(f"r{number}", "second", 0.0), 0.0) is None
    last = scheduler._by_request["r99"]
    assert last.contract.is_best_effort
    scheduler.fail_all(1.0, "the end")
    counts = scheduler.stats(1.0).contracts["second"]
    assert counts.fell_back > 0
    assert counts.budgets[0].missed == counts.budgets[0].requests == 100
    assert all(
        work.live == work.prompt_tokens == work.output_tokens == 0 for work in scheduler.admission._work.values()
    )


def test_nothing_is_kept_of_a_retired_contract_once_its_requests_have_ended() -> None:
    scheduler = make_scheduler()
    for name in ("tight", "loose"):
        assert scheduler.add(request(name, name, 0.0), 0.0) is None
    scheduler.abort("loose", 0.0)
    for name in ("tight", "loose"):
        scheduler.remove_contract(name)
    assert set(scheduler.admission._work) == {"tight"}
    scheduler.abort("tight", 1.0)
    assert not scheduler.admission._work
    assert not scheduler.admission._retired
    assert "loose" not in scheduler.stats(1.0).contracts


def overload(policy: str, admission: str, rate: float) -> Simulation:
    draw = random.Random(7)
    now, requests = 0.0, []
    for number in range(120):
        now += draw.expovariate(rate)
        is_tight = draw.random() < 0.7
        requests.append(
            request(str(number), "tight" if is_tight else "loose", now, draw.randint(20, 120), 20 if is_tight else 100)
        )
    config = SchedulerConfig(policy=policy, admission=admission, max_running=16)  # type: ignore[arg-type]
    return simulate(requests, contracts=CONTRACTS, model=MODEL, config=config)


def kept(simulation: Simulation) -> int:
    return sum(one.met is True for one in simulation.requests)


@pytest.mark.parametrize(("policy", "rate"), [("fcfs", 4.0), ("slack", 8.0)])
def test_under_overload_more_requests_meet_their_contract_when_hopeless_ones_are_refused(
    policy: str, rate: float
) -> None:
    accepted, refused = overload(policy, "accept", rate), overload(policy, "refuse", rate)
    assert any(one.refusal for one in refused.requests)
    assert kept(refused) > 1.2 * kept(accepted)


def test_who_finds_an_idle_device_is_admitted_however_many_came_before() -> None:
    scheduler = make_scheduler()
    for number in range(200):
        assert scheduler.add(request(f"gone-{number}", "tight", 0.0, outputs=40), 0.0) is None
        scheduler.abort(f"gone-{number}", 0.0)
    assert scheduler.add(request("first", "tight", 0.1, outputs=40), 0.1) is None


def test_what_misses_have_taught_fades_with_time() -> None:
    work = ContractWork(factor=4.0, factor_since_s=100.0)
    work.fade(130.0)
    assert work.factor == pytest.approx(1.0 + 3.0 / math.e)
    work.fade(400.0)
    assert work.factor == pytest.approx(1.0, abs=1e-3)
