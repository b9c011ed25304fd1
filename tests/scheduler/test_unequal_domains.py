from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unequal import Clockwork, asks_for, contract, kind, model, request, result_of, started, unequal_scheduler

from superinfer.executor.simulation.faults import DomainFault
from superinfer.executor.simulation.loop import Simulation, simulate
from superinfer.scheduler.config import DomainSpec, SchedulerConfig
from superinfer.scheduler.domain_kind import DomainKind
from superinfer.scheduler.request import Request
from superinfer.scheduler.sequence import SequenceState

CONTRACTS = [contract("tight", 200.0), contract("loose", 2000.0), contract("free", None)]
DOMAINS = [DomainSpec("slow", 200, kind="slow"), DomainSpec("fast", 200, kind="fast")]


def kinds(slow: float = 3.0) -> list[DomainKind]:
    return [kind("fast", 1.0), kind("slow", slow)]


def run(requests: list[Request], *, domains: list[DomainSpec] = DOMAINS, **options: object) -> Simulation:
    config = SchedulerConfig(host_blocks=100, placement=options.pop("placement", "headroom"))  # type: ignore[arg-type]
    return simulate(
        requests,
        contracts=CONTRACTS,
        model=model(),
        config=config,
        domains=domains,
        kinds=kinds(),
        **options,  # type: ignore[arg-type]
    )


def test_plain_pull_loses_a_tight_contract_that_placement_keeps() -> None:
    """The idle slow domain pulls first; the fast one, in the middle of a step, could still make it."""
    requests = [request("first", "tight"), request("second", "tight", 0.02)]
    pulled = run(requests, placement="pull")
    placed = run(requests)
    assert list(pulled.requests.met).count(False) >= 1
    assert list(placed.requests.met) == [True, True]
    assert all(fate.domain_ids == ("fast",) for fate in placed.requests)


def test_what_both_kinds_hold_is_for_whoever_has_room() -> None:
    scheduler = unequal_scheduler(CONTRACTS, max_step_tokens=64)
    for number in range(3):
        assert scheduler.add(request(str(number), "loose", prompt=64), 0.0) is None
    assert started(scheduler.plan("fast", 0.0)) == 1
    assert started(scheduler.plan("slow", 0.0)) == 1


def test_what_nobody_holds_is_left_to_the_slow_domain_while_it_has_room() -> None:
    scheduler = unequal_scheduler([contract("hopeless", 20.0)], max_step_tokens=64)
    for number in range(2):
        assert scheduler.add(request(str(number), "hopeless", prompt=64), 0.0) is None
    assert not scheduler.has_work("fast")
    assert started(scheduler.plan("slow", 0.0)) == 1  # what its step has room for
    assert scheduler.has_work("fast")


def test_a_tight_request_waits_for_the_fast_domain_and_not_for_a_dead_one() -> None:
    scheduler = unequal_scheduler(CONTRACTS)
    scheduler.add(request("a", "tight"), 0.0)
    assert not scheduler.has_work("slow")
    scheduler.domain_failed("fast", 0.0)
    assert scheduler.has_work("slow")
    scheduler.domain_ready(DomainSpec("fast", 200, kind="fast"), 0.01)
    assert not scheduler.has_work("slow")
    assert started(scheduler.plan("fast", 0.01)) == 1


def test_a_request_that_has_waited_too_long_for_the_slow_domain_is_left_to_the_fast_one() -> None:
    scheduler = unequal_scheduler([contract("medium", 500.0)])
    scheduler.add(request("a", "medium"), 0.0)
    assert scheduler.has_work("slow")
    assert started(scheduler.plan("slow", 0.3)) == 0
    assert started(scheduler.plan("fast", 0.3)) == 1


def test_who_would_just_make_it_on_the_slow_domain_goes_there_once_the_fast_one_has_no_room() -> None:
    scheduler = unequal_scheduler([contract("brisk", 300.0)], max_step_tokens=50)
    for number in range(2):
        scheduler.add(request(str(number), "brisk"), 0.0)
    assert not scheduler.has_work("slow")
    assert started(scheduler.plan("fast", 0.0)) == 1
    assert scheduler.has_work("slow")
    assert started(scheduler.plan("slow", 0.0)) == 1


def test_who_can_make_it_nowhere_is_taken_by_whoever_has_room() -> None:
    scheduler = unequal_scheduler(CONTRACTS)
    scheduler.add(request("a", "tight"), 0.0)
    assert started(scheduler.plan("slow", 1.0)) == 1


def test_precision_is_lost_only_where_the_contract_permits_it_even_where_nobody_else_is_up() -> None:
    contracts = [contract("exact", 5000.0), contract("lax", 5000.0, precision_loss_allowed=True)]
    small = [kind("fast", 1.0), kind("slow", 0.5, loses_precision=True)]
    scheduler = unequal_scheduler(contracts, small)
    scheduler.domain_failed("fast", 0.0)
    scheduler.add(request("a", "exact"), 0.0)
    assert not scheduler.has_work("slow")
    scheduler.add(request("b", "lax"), 0.0)
    plan = scheduler.plan("slow", 0.0)
    assert started(plan) == 1
    scheduler.domain_ready(DomainSpec("fast", 200, kind="fast"), 0.1)
    assert started(scheduler.plan("fast", 0.1)) == 1


@pytest.mark.parametrize("resources", [{"min_gpu_count": 4}, {"memory_per_gpu_mb": 60_000.0}])
def test_devices_that_a_contract_asks_for_are_a_condition(resources: dict[str, float]) -> None:
    picky = contract("picky", 5000.0, resources=asks_for(**resources))
    large = kind("fast", 1.0, devices=8, memory_per_device_mb=80_000.0)
    small = kind("slow", 3.0, devices=2, memory_per_device_mb=40_000.0)
    scheduler = unequal_scheduler([picky], [large, small])
    scheduler.add(request("a", "picky"), 0.0)
    assert not scheduler.has_work("slow")
    assert started(scheduler.plan("fast", 0.0)) == 1


def test_a_contract_that_no_domain_can_serve_is_refused_with_what_there_is() -> None:
    picky = contract("picky", 5000.0, resources=asks_for(min_gpu_count=16))
    scheduler = unequal_scheduler([picky], [kind("fast", 1.0, devices=8, device_type="H100"), kind("slow", 3.0)])
    refusal = scheduler.add(request("a", "picky"), 0.0)
    assert refusal is not None
    assert refusal.code == "no_domain"
    assert "8 × H100" in refusal.message


def test_a_preferred_type_of_device_comes_first_while_it_holds_the_request() -> None:
    choosy = contract("choosy", 500.0, resources=asks_for(preferred_gpu_type="big"))
    scheduler = unequal_scheduler([choosy], [kind("fast", 1.0, device_type="big"), kind("slow", 2.0)])
    scheduler.add(request("a", "choosy"), 0.0)
    assert not scheduler.has_work("slow")
    scheduler.domain_failed("fast", 0.0)
    assert started(scheduler.plan("slow", 0.0)) == 1


def test_each_kind_has_its_own_limits() -> None:
    narrow = [kind("fast", 1.0), kind("slow", 3.0, max_running=1, max_step_tokens=40)]
    scheduler = unequal_scheduler(CONTRACTS, narrow)
    for number in range(4):
        scheduler.add(request(str(number), "loose", prompt=10), 0.0)
    assert started(scheduler.plan("slow", 0.0)) == 1
    assert scheduler.ground_of("slow").config.max_step_tokens == 40
    assert scheduler.ground_of("fast").config.max_running == 64


def test_a_request_too_large_for_the_slow_domain_is_not_held_there() -> None:
    domains = [DomainSpec("slow", 3, kind="slow"), DomainSpec("fast", 200, kind="fast")]
    scheduler = unequal_scheduler(CONTRACTS, domains=domains)
    assert scheduler.add(request("a", "loose"), 0.0) is None
    assert not scheduler.has_work("slow")
    assert started(scheduler.plan("fast", 0.0)) == 1


@pytest.mark.parametrize(("layout", "computed"), [("same", 50), ("other", 0)])
def test_what_moves_is_read_in_place_where_layouts_agree_and_computed_anew_where_not(
    layout: str, computed: int
) -> None:
    pair = [kind("fast", 1.0, kv_layout="same"), kind("slow", 2.0, kv_layout=layout)]
    domains = [DomainSpec("slow", 200, kind="slow", segment=0), DomainSpec("fast", 200, kind="fast", segment=1)]
    scheduler = unequal_scheduler([contract("tight", 150.0)], pair, domains)
    scheduler.add(request("a", "tight"), 0.0)
    clock = Clockwork(scheduler)
    assert started(clock.step("fast")) == 1
    assert scheduler.domain_failed("fast", clock.now)[0] == 1
    plan = scheduler.plan("slow", clock.now)
    assert plan is not None
    assert plan.new_sequences[0].computed == computed
    assert plan.sequences[0].start == computed


def test_each_kind_learns_its_own_speed() -> None:
    scheduler = unequal_scheduler(CONTRACTS)
    scheduler.add(request("a", "loose"), 0.0)
    plan = scheduler.plan("slow", 0.0)
    assert plan is not None
    slow, fast = scheduler.ground_of("slow").model, scheduler.ground_of("fast").model
    clock = Clockwork(scheduler)
    clock.now = 1.9 * plan.predicted_s
    result = result_of(plan, scheduler, clock.now)
    result.started_s = 0.0
    scheduler.observe(result, clock.now)
    assert slow.correction > 1.1
    assert fast.correction == 1.0


def test_admission_goes_by_the_kind_where_a_request_is_least_late() -> None:
    refusing = unequal_scheduler(CONTRACTS, admission="refuse")
    only_slow = unequal_scheduler(CONTRACTS, admission="refuse")
    only_slow.domain_failed("fast", 0.0)
    answers = []
    for scheduler in (refusing, only_slow):
        codes = [scheduler.add(request(str(number), "tight"), 0.0) for number in range(3)]
        answers.append(sum(each is None for each in codes))
    assert answers[0] >= 2
    sequence = SequenceState(999, request("t", "tight"), CONTRACTS[0])
    sequence.expected_outputs = 5
    estimate = refusing.admission.estimate(sequence, 0.0)
    assert estimate.total_s < model(3.0).unloaded_s(50, 5)


OFFERS = st.lists(
    st.tuples(st.floats(0, 4), st.sampled_from(["tight", "loose", "free"]), st.integers(1, 120), st.integers(1, 30)),
    min_size=1,
    max_size=14,
)


def offered(offers: list[tuple[float, str, int, int]]) -> list[Request]:
    return [
        request(str(n), name, *rest)
        for n, (rest, name) in enumerate(
            sorted(((arrival, prompt, outputs), name) for arrival, name, prompt, outputs in offers)
        )
    ]


@given(OFFERS)
@settings(max_examples=25)
def test_steps_taken_together_give_what_they_give_one_by_one(offers: list[tuple[float, str, int, int]]) -> None:
    one, other = (run(offered(offers), sigma=0.1, fast_forward=each) for each in (True, False))
    assert one.steps == other.steps
    assert [fate.domain_ids for fate in one.requests] == [fate.domain_ids for fate in other.requests]
    assert [fate.met for fate in one.requests] == [fate.met for fate in other.requests]
    # The sum of the durations of steps taken together may differ in the last bit.
    assert one.requests.finished_s == pytest.approx(other.requests.finished_s, abs=1e-9)


@given(OFFERS)
@settings(max_examples=25)
def test_every_request_ends_and_leaves_nothing_behind(offers: list[tuple[float, str, int, int]]) -> None:
    result = run(offered(offers))
    assert all(fate.reason == "length" for fate in result.requests)


@given(OFFERS, st.floats(0, 4))
@settings(max_examples=25)
def test_no_request_is_ever_served_in_a_precision_that_its_contract_forbids(
    offers: list[tuple[float, str, int, int]], dies_s: float
) -> None:
    contracts = [
        contract("tight", 200.0),
        contract("loose", 2000.0, precision_loss_allowed=True),
        contract("free", None),
    ]
    result = simulate(
        offered(offers),
        contracts=contracts,
        model=model(),
        config=SchedulerConfig(),
        domains=DOMAINS,
        kinds=[kind("fast", 1.0), kind("slow", 0.7, loses_precision=True)],
        faults=[DomainFault(dies_s, "fast", restart_s=1.0)],
    )
    for fate in result.requests:
        assert fate.reason == "length"
        assert fate.contract_id == "loose" or set(fate.domain_ids) == {"fast"}


@given(OFFERS)
@settings(max_examples=25)
def test_domains_of_one_kind_that_pull_decide_as_equal_ones(offers: list[tuple[float, str, int, int]]) -> None:
    options = {"contracts": CONTRACTS, "model": model(), "config": SchedulerConfig(placement="pull")}
    specs = [DomainSpec(each, 100, kind="k") for each in ("a", "b")]
    plain = simulate(offered(offers), domains=[DomainSpec("a", 100), DomainSpec("b", 100)], **options)  # type: ignore[arg-type]
    alike = simulate(offered(offers), domains=specs, kinds=[kind("k", 1.0)], **options)  # type: ignore[arg-type]
    assert [fate.met for fate in plain.requests] == [fate.met for fate in alike.requests]
    assert [fate.domain_ids for fate in plain.requests] == [fate.domain_ids for fate in alike.requests]
    assert plain.requests.finished_s == pytest.approx(alike.requests.finished_s)
