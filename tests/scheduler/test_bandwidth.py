"""Bandwidth of running requests: never over-committed, always released, best effort held back beside it."""

from __future__ import annotations

import math
import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superinfer.contracts.contract import Bound, ResourceConstraints, SLOContract
from superinfer.executor.simulated import SimulatedDevice
from superinfer.profiler.latency_model import LatencyModel, StepShape
from superinfer.scheduler.bandwidth import BandwidthGate
from superinfer.scheduler.config import DomainSpec, SchedulerConfig
from superinfer.scheduler.fault_map import HomeAndBackup
from superinfer.scheduler.ledger import Priority
from superinfer.scheduler.policies.registry import POLICIES
from superinfer.scheduler.request import Request, SamplingParams
from superinfer.scheduler.scheduler import Scheduler
from superinfer.scheduler.steps import StepPlan, StepResult

BANDWIDTH = 10.0
RESERVABLE = 9.0
NAMES = ("a", "b")
MODEL = LatencyModel(
    launch_s=0.002,
    linear_points=[(1, 0.02), (64, 0.08), (256, 0.3)],
    decode_context_s=1e-6,
    decode_s=5e-4,
    prefill_pair_s=1e-7,
    chunk_s=1e-3,
    row_s=1e-3,
)


def contract(name: str, gb_per_s: float | None, bound_ms: float | None = None) -> SLOContract:
    bounds = () if bound_ms is None else (Bound(0.99, bound_ms),)
    return SLOContract(
        service_id=name, latency=bounds, resources=ResourceConstraints(reserved_bandwidth_gb_per_s=gb_per_s)
    )


CONTRACTS = [
    contract("big", 6.0, 3000.0),
    contract("small", 3.0, 800.0),
    contract("other", 4.0),
    contract("best", None),
]


def spec(name: str, kv_bytes: float = 1e6) -> DomainSpec:
    return DomainSpec(name, 60, bandwidth_gb_per_s=BANDWIDTH, kv_bytes_per_token=kv_bytes)


def make_scheduler(
    policy: str = "slack", kv_bytes: float = 1e6, names: tuple[str, ...] = NAMES, **settings
) -> Scheduler:  # type: ignore[no-untyped-def]
    config = SchedulerConfig(
        **{
            "policy": policy,
            "max_step_tokens": 32,
            "max_running": 6,
            "max_model_len": 96,
            "block_size": 4,
            "host_blocks": 30,
            **settings,
        }
    )
    return Scheduler(
        domains=[spec(name, kv_bytes) for name in names],
        contracts=CONTRACTS,
        latency_model=MODEL.fresh(),
        config=config,
    )


def request(name: str, contract_id: str, now: float, prompt: int = 8, outputs: int = 8) -> Request:
    return Request(
        request_id=name,
        contract_id=contract_id,
        prompt_token_ids=[1] * prompt,
        sampling=SamplingParams(max_tokens=outputs, ignore_eos=True),
        arrival_s=now,
    )


def check(scheduler: Scheduler, now: float) -> None:
    """What the ledger holds is within the limit, and for contracts with a request on the domain alone."""
    for name, owners in scheduler.bandwidth.reserved_gb_per_s(now).items():
        assert sum(owners.values()) <= RESERVABLE + 1e-9
        domain = scheduler.domains[name]
        there = {s.request.contract_id for s in (*domain.running.values(), *domain.rotated.values())}
        assert set(owners) <= there
        in_time = {
            s.request.contract_id
            for s in domain.running.values()
            if s.contract.resources.reserved_bandwidth_gb_per_s and now < s.deadline_s
        }
        assert in_time <= set(owners)


@pytest.mark.parametrize("policy", POLICIES)
@given(seed=st.integers(0, 2**32), kill=st.booleans())
@settings(max_examples=6, deadline=None)
def test_no_history_over_commits_a_domain_or_leaves_anything_reserved(policy: str, seed: int, kill: bool) -> None:
    draw = random.Random(seed)
    scheduler = make_scheduler(policy)
    devices = {name: SimulatedDevice(name, MODEL) for name in NAMES}
    pending: dict[str, deque] = {name: deque() for name in NAMES}  # type: ignore[type-arg]
    now, live = 0.0, 0
    for turn in range(2000):
        now += draw.random() * 0.03
        if turn < 60 and draw.random() < 0.5:
            drawn = draw.choice(CONTRACTS).service_id
            one = request(f"r{turn}", drawn, now, draw.randint(1, 40), draw.randint(1, 16))
            assert scheduler.add(one, now) is None
        if draw.random() < 0.05 and scheduler._by_request:
            scheduler.abort(draw.choice(list(scheduler._by_request)), now)
        if kill and turn in (30, 55):
            name = draw.choice(NAMES)
            pending[name].clear()
            scheduler.domain_failed(name, now)
            check(scheduler, now)
            assert scheduler.bandwidth.reserved_gb_per_s(now)[name] == {}
            devices[name] = SimulatedDevice(name, MODEL)
            scheduler.domain_ready(spec(name), now)
        for name in NAMES:
            if scheduler.in_flight(name) < 2 and scheduler.has_work(name) and draw.random() < 0.7:
                plan = scheduler.plan(name, now)
                check(scheduler, now)
                if plan is not None:
                    pending[name].append(devices[name].execute(plan))
            if pending[name] and draw.random() < 0.7:
                scheduler.observe(pending[name].popleft(), now)
                check(scheduler, now)
        live = len(scheduler._by_request)
        if turn > 60 and not live:
            break
    assert live == 0
    assert all(not owners for owners in scheduler.bandwidth.reserved_gb_per_s(now).values())
    assert not scheduler.bandwidth._holds
    assert not scheduler.bandwidth._hold_of
    assert not scheduler.bandwidth._last_turns


@pytest.mark.parametrize("policy", ["slack", "fcfs", "edf"])
def test_what_finds_no_room_goes_to_another_domain_or_waits_until_there_is(policy: str) -> None:
    scheduler = make_scheduler(policy)
    for number, name in enumerate(("big", "other", "other")):
        assert scheduler.add(request(f"r{number}", name, 0.0), 0.0) is None
    assert scheduler.plan("a", 0.0) is not None
    first = scheduler.bandwidth.reserved_gb_per_s(0.0)
    assert len(first["a"]) == 1  # 6 + 4 GB/s are more than the 9 that can be reserved
    assert scheduler.plan("b", 0.0) is not None
    both = scheduler.bandwidth.reserved_gb_per_s(0.0)
    assert {*both["a"], *both["b"]} == {"big", "other"}
    alone = make_scheduler(policy, names=("a",))
    for name in ("big", "other"):
        assert alone.add(request(name, name, 0.0), 0.0) is None
    alone.plan("a", 0.0)
    (held,) = alone.bandwidth.reserved_gb_per_s(0.0)["a"]
    waits = "other" if held == "big" else "big"
    assert alone.plan("a", 0.0) is None or waits not in alone.bandwidth.reserved_gb_per_s(0.0)["a"]
    assert alone.abort(held, 0.1) is not None
    alone.plan("a", 0.1)
    assert list(alone.bandwidth.reserved_gb_per_s(0.1)["a"]) == [waits]


def test_a_reservation_ends_with_the_deadline_though_the_request_runs_on() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("r", "small", 0.0), 0.0)
    scheduler.plan("a", 0.0)
    assert scheduler.bandwidth.reserved_gb_per_s(0.79)["a"] == {"small": 3.0}
    assert scheduler.bandwidth.reserved_gb_per_s(0.81)["a"] == {}
    assert scheduler.domains["a"].running
    scheduler.add(request("s", "small", 0.9), 0.9)
    scheduler.plan("a", 0.9)
    assert scheduler.bandwidth.reserved_gb_per_s(1.0)["a"] == {"small": 3.0}


def test_more_than_any_domain_can_reserve_is_refused_with_the_figure() -> None:
    scheduler = make_scheduler()
    scheduler.add_contract(contract("huge", 9.5, 1000.0))
    refusal = scheduler.add(request("r", "huge", 0.0), 0.0)
    assert refusal is not None
    assert refusal.code == "bandwidth_exceeded"
    assert "9.5 GB/s; at most 9 GB/s" in refusal.message


def test_where_the_bandwidth_of_domains_is_unknown_nothing_is_reserved_and_nothing_waits() -> None:
    scheduler = Scheduler(
        domains=[DomainSpec("a", 60)], contracts=CONTRACTS, latency_model=MODEL, config=SchedulerConfig()
    )
    for name in ("big", "other"):
        assert scheduler.add(request(name, name, 0.0), 0.0) is None
    scheduler.plan("a", 0.0)
    assert len(scheduler.domains["a"].running) == 2
    assert scheduler.bandwidth.reserved_gb_per_s(0.0) == {}


@pytest.mark.parametrize("policy", ["slack", "fcfs", "round_robin"])
def test_beside_a_reservation_best_effort_moves_no_more_than_the_rest_and_takes_turns(policy: str) -> None:
    kv_bytes = 1e6
    scheduler = make_scheduler(policy, kv_bytes, names=("a",), max_step_tokens=64)
    device, now = SimulatedDevice("a", MODEL), 0.0

    def step() -> tuple[float, float, int]:
        """GB that best effort moves, GB that it may, and how many of its sequences decode."""
        nonlocal now
        running = list(scheduler.domains["a"].running.values())
        before = {s.sequence_id: (s.computed, s.request.request_id) for s in running if s.can_decode}
        plan = scheduler.plan("a", now)
        assert plan is not None
        after = {s.sequence_id: s.computed for s in running}
        moved = [done for key, (done, name) in before.items() if name.startswith("best") and after[key] > done]
        reserved = sum(scheduler.bandwidth.reserved_gb_per_s(now)["a"].values())
        allowed = (BANDWIDTH - reserved) * plan.predicted_s
        device.now = now
        result = device.execute(plan)
        now = result.finished_s
        scheduler.observe(result, now)
        return kv_bytes * sum(done + 1 for done in moved) / 1e9, allowed, len(moved)

    for number in range(4):
        assert scheduler.add(request(f"best-{number}", "best", 0.0, prompt=35, outputs=40), 0.0) is None
    for _ in range(8):
        step()
    assert step()[2] == 4  # nothing is reserved yet
    assert scheduler.add(request("big", "big", now, prompt=2, outputs=20), now) is None
    step()
    turns = []
    while "big" in scheduler._by_request:
        gb, allowed, moved = step()
        assert moved <= 1 or gb <= allowed
        turns.append(moved)
    assert 0 < sum(turns) < 4 * len(turns)
    outputs = [len(s.outputs) for s in scheduler._by_request.values()]
    assert len(outputs) == 4
    assert max(outputs) - min(outputs) <= 12
    assert step()[2] == 4


def shared_scheduler(*, weight_bytes: float = 2e8, max_model_len: int = 96) -> Scheduler:
    """Two domains on one bus: what reserves runs in a, best effort in b."""
    return Scheduler(
        domains=[
            DomainSpec(
                name,
                max(60, max_model_len // 2),
                bandwidth_gb_per_s=BANDWIDTH,
                kv_bytes_per_token=1e3,
                weight_bytes=weight_bytes,
                device_id="bus",
            )
            for name in NAMES
        ],
        contracts=CONTRACTS,
        latency_model=MODEL.fresh(),
        config=SchedulerConfig(
            max_model_len=max_model_len,
            block_size=4,
            fault_domains={
                "best": HomeAndBackup(("b",), ()),
                **{each: HomeAndBackup(("a",), ()) for each in ("big", "small", "other")},
            },
        ),
    )


def test_domains_that_share_a_bus_share_its_account() -> None:
    scheduler = shared_scheduler()
    assert scheduler.bandwidth.ledger.device_ids == ["bus"]
    for name in ("big", "other"):
        assert scheduler.add(request(name, name, 0.0), 0.0) is None
    scheduler.plan("a", 0.0)
    held = scheduler.bandwidth.reserved_gb_per_s(0.0)
    assert len(held["a"]) == 1
    assert held["b"] == {}
    assert scheduler.bandwidth.is_reserved("b", 0.0)


def test_a_step_of_best_effort_beside_a_reservation_is_spread_until_the_rest_of_the_bus_moves_it() -> None:
    scheduler = shared_scheduler()
    scheduler.add(request("best", "best", 0.0), 0.0)
    free = scheduler.plan("b", 0.0)
    assert free is not None
    assert free.paced_s == 0.0
    scheduler.add(request("big", "big", 0.0, outputs=20), 0.0)
    stream = scheduler.plan("a", 0.0)
    assert stream is not None
    assert stream.paced_s == 0.0  # the holder is never held back
    assert not stream.leaves_core
    device = SimulatedDevice("b", MODEL)
    scheduler.observe(device.execute(free), 0.1)
    correction = scheduler.model.correction
    paced = scheduler.plan("b", 0.1)
    assert paced is not None
    moved_gb = (2e8 + 1e3 * 9) / 1e9
    assert paced.paced_s == pytest.approx(moved_gb / (BANDWIDTH - 6.0), rel=0.01)
    assert paced.predicted_s == paced.paced_s
    assert paced.leaves_core
    device.now = 0.1
    result = device.execute(paced)
    assert result.duration_s == pytest.approx(paced.paced_s)
    scheduler.observe(result, result.finished_s)
    assert scheduler.model.correction == correction  # a step slow on purpose teaches nothing
    scheduler.abort("big", result.finished_s)
    after = scheduler.plan("b", result.finished_s)
    assert after is not None
    assert after.paced_s == 0.0
    assert not after.leaves_core


def test_a_step_that_only_leaves_its_core_to_others_teaches_nothing_either() -> None:
    scheduler = shared_scheduler(weight_bytes=1e3)
    scheduler.add(request("best", "best", 0.0), 0.0)
    scheduler.add(request("big", "big", 0.0, outputs=20), 0.0)
    assert scheduler.plan("a", 0.0) is not None
    plan = scheduler.plan("b", 0.0)
    assert plan is not None
    assert plan.leaves_core
    assert plan.paced_s == 0.0
    result, correction = SimulatedDevice("b", MODEL).execute(plan), scheduler.model.correction
    result.finished_s += 1.0  # somebody had its core
    scheduler.observe(result, result.finished_s)
    assert scheduler.model.correction == correction


def test_best_effort_in_the_holders_own_domain_keeps_its_core() -> None:
    """The holder's next step waits for it."""
    scheduler = shared_scheduler()
    scheduler.add(request("big", "big", 0.0, outputs=20), 0.0)
    assert scheduler.plan("a", 0.0) is not None
    shape = StepShape(tokens=1, decodes=1, rows=1)
    own, other = (scheduler.bandwidth.pacing(each, [], shape, MODEL, 0.0) for each in "ab")
    assert not own.leaves_core
    assert other.leaves_core
    assert other.is_slow_on_purpose


@given(weight_gb=st.floats(1e-3, 2.0), wanted=st.sampled_from(["big", "small", "other"]))
@settings(max_examples=40)
def test_best_effort_never_moves_more_than_the_ledger_leaves(weight_gb: float, wanted: str) -> None:
    scheduler = shared_scheduler(weight_bytes=weight_gb * 1e9)
    device, now = SimulatedDevice("b", MODEL), 0.0
    scheduler.add(request("r", wanted, 0.0, outputs=20), 0.0)
    assert scheduler.plan("a", now) is not None
    for number in range(3):
        scheduler.add(request(f"best-{number}", "best", now, outputs=6), now)
    reserved = sum(scheduler.bandwidth.reserved_gb_per_s(now)["a"].values())
    end_s = 0.7  # before the shortest deadline
    while now < end_s and (plan := scheduler.plan("b", now)) is not None:
        device.now = now
        result = device.execute(plan)
        lasted_s = result.duration_s
        moved_gb = weight_gb if plan.token_count else 0.0
        assert moved_gb <= (BANDWIDTH - reserved) * lasted_s * (1 + 1e-9)
        now = result.finished_s
        scheduler.observe(result, now)


def test_two_best_effort_domains_share_what_is_left() -> None:
    gate = BandwidthGate()
    for name in ("a", "b", "c"):
        gate.domain_ready(DomainSpec(name, 60, bandwidth_gb_per_s=10.0, weight_bytes=1e9, device_id="bus"), 0.0)
    gate.ledger.reserve("bus", 6.0, 10_000, Priority.NORMAL, "stream", 0.0)
    shape = StepShape(tokens=1, decodes=1, rows=1)
    alone = gate.pacing("b", [], shape, MODEL, 0.0).paced_s
    assert alone == pytest.approx(1.0 / 4.0)
    assert gate.pacing("c", [], shape, MODEL, 0.1).paced_s == pytest.approx(1.0 / 2.0)
    assert gate.pacing("b", [], shape, MODEL, 0.2).paced_s == pytest.approx(1.0 / 2.0)
    assert gate.pacing("b", [], shape, MODEL, 5.0).paced_s == pytest.approx(1.0 / 2.0)  # c's step is not over yet
    gate._shares["bus"]._interference.moved("c", 0.1, 5.1, 1.0)
    assert gate.pacing("b", [], shape, MODEL, 5.2).paced_s == pytest.approx(1.0 / 4.0)


def beside(slope: float, weight_bytes: float) -> list[StepPlan]:
    """What best effort in b is planned to do while a's decodes take `slope` (log) longer for each GB/s that b moves."""
    scheduler = shared_scheduler(weight_bytes=weight_bytes, max_model_len=1000)
    holder, best_effort = SimulatedDevice("a", MODEL), SimulatedDevice("b", MODEL)
    scheduler.add(request("r", "other", 0.0, outputs=400), 0.0)
    scheduler.add(request("best", "best", 0.0, outputs=900), 0.0)
    plans: list[StepPlan] = []
    flights: dict[str, StepResult] = {}
    moving_s = rate = 0.0
    now = 0.0
    while len(plans) < 300 and scheduler._by_request.get("r") is not None:
        for name, device in (("a", holder), ("b", best_effort)):
            if name in flights:
                continue
            device.now = now
            plan = scheduler.plan(name, now)
            assert plan is not None
            result = flights[name] = device.execute(plan)
            if name == "b":
                plans.append(plan)
                moving_s = result.started_s + plan.pause_s
                rate = weight_bytes / 1e9 / (result.finished_s - moving_s)
            elif moving_s <= now < flights.get("b", result).finished_s:
                result.finished_s = now + result.duration_s * math.exp(slope * rate)
        name = min(flights, key=lambda each: flights[each].finished_s)
        now = flights[name].finished_s
        scheduler.observe(flights.pop(name), now)
    return plans


def test_best_effort_that_slows_a_holder_down_is_slowed_itself_and_rests_now_and_then() -> None:
    plans = beside(slope=0.1, weight_bytes=5e7)
    free_s = plans[0].predicted_s
    assert all(plan.predicted_s >= plan.pause_s + plan.paced_s for plan in plans)
    resting = [plan for plan in plans if plan.pause_s > 0.0]
    assert resting
    assert len(resting) < len(plans) / 4
    assert plans[-1].paced_s > 3 * free_s


def test_best_effort_that_costs_a_holder_nothing_runs_as_the_ledger_lets_it() -> None:
    plans = beside(slope=0.0, weight_bytes=5e7)
    assert {plan.paced_s for plan in plans} == {0.0}  # 50 MB a step are less than is left


def test_a_holder_that_uses_more_than_it_reserved_is_kept_at_that_rate_and_no_higher() -> None:
    # It moves 0.2 GB in 25 ms, 8 GB/s, and has reserved 4.
    plans = beside(slope=0.05, weight_bytes=2e8)
    assert plans[-1].paced_s == pytest.approx(0.2 / (BANDWIDTH - 4.0), rel=0.05)
