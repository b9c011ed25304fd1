from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from superinfer.scheduler.pareto import MIN_SPAN, TRADE, Clash, Plan, clashing_contracts, plan_allocation, solve_count
from superinfer.scheduler.pareto_demand import ContractDemand, TimeBound
from superinfer.scheduler.pareto_program import AllocationProgram, PlanLimits
from superinfer.scheduler.topology import Device

LIMITS = PlanLimits(weights_gb=2.0)


def device(name: str, speed: float = 1.0, bandwidth: float = 40.0, memory: float = 10.0) -> Device:
    return Device(name=name, memory_gb=memory, bandwidth_gb_per_s=bandwidth, relative_compute=speed)


def demand(name: str, rate: float, work: float, bound: float | None, **more: Any) -> ContractDemand:
    bounds = () if bound is None else (TimeBound("latency", 0.99, bound, work),)
    return ContractDemand(name, rate, work, work, bounds=bounds, **{"gb_per_busy_s": 10.0, **more})


@st.composite
def instances(draw: st.DrawFn) -> tuple[list[ContractDemand], dict[str, Device]]:
    demands = []
    for number in range(draw(st.integers(1, 3))):
        work = draw(st.sampled_from([0.02, 0.1, 0.5]))
        tightness = draw(st.sampled_from([3.0, 8.0, 20.0, 60.0]))
        load = draw(st.sampled_from([0.05, 0.2, 0.5]))
        demands.append(
            demand(
                f"c{number}",
                load / work,
                work,
                work * tightness,
                gb_per_busy_s=draw(st.sampled_from([5.0, 30.0, 45.0])),
                request_memory_gb=draw(st.sampled_from([0.01, 1.0])),
                min_devices=draw(st.sampled_from([1, 1, 2])),
            )
        )
    speeds = draw(st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=1, max_size=2))
    return demands, {f"d{n}": device(f"d{n}", speed) for n, speed in enumerate(speeds)}


def holds_by_enumeration(demands: Sequence[ContractDemand], devices: Sequence[Device]) -> bool:
    """Every placement in turn; with replicas fixed, how to split the rates is a small linear program of its own."""
    subsets = [
        [chosen for size in range(1, len(devices) + 1) for chosen in itertools.combinations(range(len(devices)), size)]
    ] * len(demands)
    return any(splits_exist(demands, devices, placement) for placement in itertools.product(*subsets))


def splits_exist(
    demands: Sequence[ContractDemand], devices: Sequence[Device], placement: Sequence[tuple[int, ...]]
) -> bool:
    pairs = [(c, d) for c, chosen in enumerate(placement) for d in chosen]
    if any(len(chosen) < demands[c].min_devices for c, chosen in enumerate(placement)):
        return False
    if any(math.isinf(demands[c].headroom(devices[d].relative_compute)) for c, d in pairs):
        return False
    rows, limits = [], []
    for d, each in enumerate(devices):
        here = [c for c, other in pairs if other == d]
        if not here:
            continue
        heads = {c: demands[c].headroom(each.relative_compute) for c in here}
        work = [demands[c].work_s if other == d else 0.0 for c, other in pairs]
        moved = [w * demands[c].gb_per_busy_s for w, (c, _) in zip(work, pairs, strict=True)]
        kept = [
            demands[c].request_memory_gb * demands[c].residence_s(each.relative_compute) if other == d else 0.0
            for c, other in pairs
        ]
        rows += [work, moved, kept]
        limits += [
            each.relative_compute - sum(heads.values()),
            each.bandwidth_gb_per_s * LIMITS.bandwidth_share
            - sum(head * demands[c].gb_per_busy_s for c, head in heads.items()),
            each.memory_gb - LIMITS.weights_gb - sum(demands[c].request_memory_gb for c in here),
        ]
    totals = [[float(c == contract) for c, _ in pairs] for contract in range(len(demands))]
    rates = [each.rate_per_s for each in demands]
    return bool(linprog([0.0] * len(pairs), rows, limits, totals, rates).success)


@settings(max_examples=40, deadline=None)
@given(instances())
def test_a_plan_exists_exactly_where_some_placement_holds_every_bound(
    instance: tuple[list[ContractDemand], dict[str, Device]],
) -> None:
    demands, devices = instance
    program = AllocationProgram(demands, list(devices.values()), LIMITS)
    assert (program.solve({}) is not None) == holds_by_enumeration(demands, list(devices.values()))


@settings(max_examples=25, deadline=None)
@given(instances())
def test_the_clash_named_is_a_smallest_one(instance: tuple[list[ContractDemand], dict[str, Device]]) -> None:
    demands, devices = instance
    every = list(devices.values())
    result = plan_allocation(demands, devices, LIMITS)
    if isinstance(result, Plan):
        return
    assert result.is_smallest
    named = [each for each in demands if each.name in result.names]
    assert not holds_by_enumeration(named, every)
    smaller = itertools.combinations(demands, len(named) - 1)
    assert all(holds_by_enumeration(subset, every) for subset in smaller if subset)


def margin_spans(plan: Plan) -> list[float]:
    """How far each margin can rise above the least: on the frontier is a point where it is highest."""
    lows = [0.0 if each.is_best_effort else 1.0 for each in plan.chosen.contracts]
    highest = [max(point.contracts[c].margin for point in plan.frontier) for c in range(len(lows))]
    return [max(high - low, MIN_SPAN) for high, low in zip(highest, lows, strict=True)]


@settings(max_examples=15, deadline=None)
@given(instances(), st.booleans())
def test_no_margin_can_rise_without_another_falling_and_every_limit_holds(
    instance: tuple[list[ContractDemand], dict[str, Device]], with_best_effort: bool
) -> None:
    demands, devices = instance
    if with_best_effort:
        demands = [*demands, demand("rest", 5.0, 0.3, None)]
    result = plan_allocation(demands, devices, LIMITS)
    if isinstance(result, Clash):
        return
    program = AllocationProgram(demands, list(devices.values()), LIMITS)
    spans = margin_spans(result)
    # What a fall of every margin by this part of its span may buy: the program's own rate of exchange.
    fall = 1e-5
    rise = fall * (TRADE + 2 * len(demands))
    for point in result.frontier:
        assert point.is_proven
        floors = {c: (each.margin, spans[c]) for c, each in enumerate(point.contracts)}
        for c, each in enumerate(point.contracts):
            again = program.solve({program.margin(c): 1.0}, floors, (-fall, -fall))
            assert again is not None
            assert again.margins[c] <= each.margin + rise * spans[c]
        for device_id, spec in devices.items():
            shares = [share for each in point.contracts for share in each.shares if share.device_id == device_id]
            assert sum(share.time_share for share in shares) <= 1 + 1e-6
            assert sum(share.bandwidth_gb_per_s for share in shares) <= (0.9 + 1e-6) * spec.bandwidth_gb_per_s
            assert sum(share.memory_gb for share in shares) + LIMITS.weights_gb <= spec.memory_gb + 1e-6
        for asked, each in zip(demands, point.contracts, strict=True):
            assert all(bound.predicted_ms <= bound.bound_ms * (1 + 1e-6) for bound in each.predictions)
            served = sum(share.rate_per_s for share in each.shares)
            expected = asked.rate_per_s * (each.margin if each.is_best_effort else 1.0)
            assert served == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert result.chosen.utilisation >= max(each.utilisation for each in result.frontier) - LIMITS.equal_utilisation


def test_margins_that_compete_form_a_frontier_and_the_choice_between_equals_is_the_balanced_one() -> None:
    demands = [demand("a", 1.0, 0.05, 0.6), demand("b", 0.2, 0.5, 16.0)]
    result = plan_allocation(demands, {"d0": device("d0")}, LIMITS)
    assert isinstance(result, Plan)
    assert len(result.frontier) >= 3
    a = {round(point.margins["a"], 6) for point in result.frontier}
    assert min(a) < result.chosen.margins["a"] < max(a)
    by_a = sorted((point.margins["a"], point.margins["b"]) for point in result.frontier)
    assert [b for _, b in by_a] == sorted((b for _, b in by_a), reverse=True)


def test_a_plan_takes_no_more_solves_than_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    solved = []
    solve = AllocationProgram.solve
    monkeypatch.setattr(AllocationProgram, "solve", lambda *args, **more: solved.append(1) or solve(*args, **more))
    for contracts in (1, 2, 3):
        solved.clear()
        demands = [demand(f"c{n}", 0.2, 0.05, 5.0) for n in range(contracts)]
        assert isinstance(plan_allocation(demands, {"d0": device("d0")}, LIMITS), Plan)
        assert len(solved) == solve_count(contracts)


def test_the_best_utilised_point_is_chosen_even_if_another_is_more_balanced() -> None:
    demands = [
        demand("a", 1.0, 0.05, 0.6, gb_per_busy_s=1.0, max_jitter_s=0.2),
        demand("b", 0.2, 0.5, 16.0, gb_per_busy_s=40.0),
    ]
    exactly = PlanLimits(weights_gb=2.0, equal_utilisation=0.0)
    result = plan_allocation(demands, {"d0": device("d0", bandwidth=50.0)}, exactly)
    assert isinstance(result, Plan)
    assert result.chosen.utilisation == max(each.utilisation for each in result.frontier)
    assert result.chosen.margins["a"] == pytest.approx(1.0, abs=1e-4)
    jitter = result.chosen.contracts[0].predictions[-1]
    assert (jitter.milestone, jitter.percentile, jitter.bound_ms) == ("jitter", None, 200.0)
    assert jitter.predicted_ms <= 200.0


def test_bandwidth_binds_where_one_contract_wants_bandwidth_and_the_other_latency() -> None:
    hungry = demand("hungry", 0.5, 0.5, 40.0, gb_per_busy_s=40.0)
    tight = demand("tight", 1.0, 0.05, 0.6, gb_per_busy_s=10.0)
    result = plan_allocation([hungry, tight], {"d0": device("d0", bandwidth=19.0)}, LIMITS)
    assert isinstance(result, Plan)
    assert result.chosen.bandwidth_utilisation == pytest.approx(0.9, abs=1e-3)
    assert result.chosen.time_utilisation < 0.8
    names = clashing_contracts([hungry, tight], {"d0": device("d0", bandwidth=18.0)}, LIMITS).names
    assert names == ("hungry", "tight")


def test_a_bound_below_the_unloaded_time_clashes_by_itself_and_best_effort_never_does() -> None:
    demands = [demand("fine", 0.1, 0.1, 5.0), demand("impossible", 0.1, 0.5, 0.4), demand("rest", 100.0, 1.0, None)]
    result = plan_allocation(demands, {"d0": device("d0")}, LIMITS)
    assert result == Clash(("impossible",), is_smallest=True)


def test_many_contracts_that_clash_only_together_are_found_by_deletion() -> None:
    many = [demand(f"c{n:02}", 1.0, 0.02, 2.0) for n in range(18)]
    alone = clashing_contracts(many, {"d0": device("d0")}, LIMITS)
    assert not alone.is_smallest
    chosen = [each for each in many if each.name in alone.names]
    need = [each.rate_per_s * each.work_s + each.headroom(1.0) for each in chosen]
    assert sum(need) > 1.0
    assert all(sum(need) - one <= 1.0 for one in need)


def test_what_margins_cannot_use_goes_to_best_effort_work() -> None:
    demands = [demand("a", 0.1, 0.01, 2.0), demand("rest", 100.0, 0.3, None)]
    result = plan_allocation(demands, {"d0": device("d0")}, PlanLimits(weights_gb=2.0, max_margin=2.0))
    assert isinstance(result, Plan)
    assert result.chosen.time_utilisation == pytest.approx(1.0, abs=1e-4)
    assert 1.0 <= result.chosen.margins["a"] <= 2.0 + 1e-6


def test_the_predicted_quantile_is_that_of_a_simulated_queue() -> None:
    each = demand("a", 6.0, 0.1, 1.0)
    [bound] = each.bounds
    headroom, speed = 0.4, 1.0
    generator = np.random.default_rng(1)
    gaps = generator.exponential(1 / each.rate_per_s, 300_000).tolist()
    services = generator.exponential(each.work_s / (each.rate_per_s * each.work_s + headroom), 300_000).tolist()
    waiting, times = 0.0, []
    for gap, service in zip(gaps, services, strict=True):
        waiting = max(waiting - gap, 0.0) + service
        times.append(waiting)
    simulated = float(np.quantile(times, 0.99)) + bound.floor_s
    assert each.predicted_s(bound, speed, headroom) == pytest.approx(simulated, rel=0.05)
