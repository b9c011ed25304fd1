from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from superinfer.contracts.contract import Bound, ResourceConstraints, SLOContract
from superinfer.profiler.latency_model import LatencyModel, StepShape
from superinfer.scheduler.placement import (
    DomainGroup,
    Placement,
    PlacementOptions,
    PlacementRequest,
    Precision,
    feasible_placements,
    place,
    place_all,
)


def model(factor: float) -> LatencyModel:
    points = [(1.0, 8e-3 * factor), (8.0, 9e-3 * factor), (64.0, 3e-2 * factor), (512.0, 0.2 * factor)]
    return LatencyModel(1e-3, points, 1e-7, 1e-5, 1e-8, 1e-5, 1e-4)


FULL = Precision("bfloat16", model(1.0), 1e5)
QUICK = Precision("fp8", model(0.6), 5e4, loses_precision=True)
OPTIONS = PlacementOptions((FULL, QUICK), batch_caps=(1, 4, 16), paged_overhead=1.05)
BOTH = frozenset({"bfloat16", "fp8"})


def group(name: str, speed: float = 1.0, time: float = 1.0, memory: float = 1e9, **more: object) -> DomainGroup:
    values: dict[str, object] = {"devices": 1, "precisions": BOTH, **more}
    return DomainGroup(group_id=name, speed=speed, free_time=time, free_memory_bytes=memory, **values)  # type: ignore[arg-type]


def request(name: str, bound_ms: float | None, outputs: int = 20, **terms: object) -> PlacementRequest:
    latency = () if bound_ms is None else (Bound(0.99, bound_ms),)
    contract = SLOContract(service_id="s", latency=latency, **terms)  # type: ignore[arg-type]
    return PlacementRequest(name, contract, prompt_tokens=100, output_tokens=outputs)


def random_instance(seed: int) -> tuple[list[PlacementRequest], list[DomainGroup]]:
    draw = random.Random(seed)
    requests = [
        request(
            f"r{n}",
            draw.choice([250.0, 400.0, 800.0, 2000.0]),
            draw.choice([5, 20, 40]),
            precision_loss_allowed=draw.random() < 0.5,
        )
        for n in range(draw.randint(2, 6))
    ]
    groups = [
        group(f"g{n}", draw.choice([0.7, 1.0, 2.0]), draw.uniform(0.2, 1.0), draw.choice([2e7, 5e7, 3e8]))
        for n in range(draw.randint(1, 3))
    ]
    return requests, groups


def headroom_from_steps(each: PlacementRequest, where: DomainGroup, what: Precision, layout: str, cap: int) -> float:
    """The end-to-end headroom by adding up the request's own engine steps."""
    prefill = StepShape()
    prefill.add_prefill(0, each.prompt_tokens, samples=True)
    decode = StepShape()
    for _ in range(cap):
        decode.add_decode(each.prompt_tokens + each.output_tokens // 2)
    decode_s = what.latency.step_s(decode) * (OPTIONS.paged_overhead if layout == "paged" else 1.0)
    total_s = what.latency.step_s(prefill) + (each.output_tokens - 1) * decode_s
    deadline_ms = each.contract.deadline_ms
    assert deadline_ms is not None
    return deadline_ms / 1e3 - 1.1 * total_s / where.speed


@pytest.mark.parametrize("seed", range(25))
def test_the_best_fit_is_the_optimum_of_an_exact_program(seed: int) -> None:
    """Binary choice among all combinations, feasible or not: least headroom, with every condition a constraint."""
    requests, groups = random_instance(seed)
    each = requests[0]
    combinations = list(itertools.product(groups, (FULL, QUICK), ("paged", "contiguous"), (1, 4, 16)))
    headroom = [headroom_from_steps(each, *combination) for combination in combinations]
    forbidden = [
        float(what.loses_precision and not each.contract.precision_loss_allowed) for _, what, _, _ in combinations
    ]
    blocks = math.ceil((each.prompt_tokens + each.output_tokens) / 16) * 16
    memory_excess = [
        (blocks if layout == "paged" else 2048) * what.kv_bytes_per_token - where.free_memory_bytes
        for where, what, layout, _ in combinations
    ]
    assert each.contract.deadline_ms is not None
    deadline_s = each.contract.deadline_ms / 1e3
    time_excess = []
    for (where, what, _, cap), left in zip(combinations, headroom, strict=True):
        alone_s = 1.1 * what.latency.prefill_s(0, 100) / where.speed
        own_s = alone_s + (deadline_s - left - alone_s) / cap
        time_excess.append(own_s / deadline_s - where.free_time)
    rows = np.array([np.ones(len(combinations)), headroom, forbidden, np.array(memory_excess) / 1e8, time_excess])
    low = np.array([1.0, 1e-12, -np.inf, -np.inf, -np.inf])
    high = np.array([1.0, np.inf, 0.0, 0.0, 0.0])
    exact = milp(
        headroom, constraints=LinearConstraint(rows, low, high), bounds=Bounds(0, 1), integrality=np.ones(len(headroom))
    )
    chosen = place(each, groups, OPTIONS)
    assert (chosen is not None) == exact.success
    if chosen is not None:
        assert chosen.headroom_s == pytest.approx(exact.fun, abs=1e-9)


def most_that_fit(requests: Sequence[PlacementRequest], groups: Sequence[DomainGroup]) -> int:
    """How many requests can be placed together at most, exactly."""
    options = [each for asked in requests for each in feasible_placements(asked, groups, OPTIONS)]
    if not options:
        return 0
    rows, high = [], []
    for asked in requests:
        rows.append([float(each.request_id == asked.request_id) for each in options])
        high.append(1.0)
    for where in groups:
        here = [float(each.group_id == where.group_id) for each in options]
        rows.append([flag * each.time_share for flag, each in zip(here, options, strict=True)])
        high.append(where.free_time)
        rows.append([flag * each.memory_bytes / 1e8 for flag, each in zip(here, options, strict=True)])
        high.append(where.free_memory_bytes / 1e8)
    result = milp(
        -np.ones(len(options)),
        constraints=LinearConstraint(np.array(rows), -np.inf, np.array(high)),
        bounds=Bounds(0, 1),
        integrality=np.ones(len(options)),
    )
    return round(-result.fun)


def test_placing_many_never_overbooks_and_comes_close_to_the_exact_number() -> None:
    placed_in_all = best_in_all = 0
    for seed in range(40):
        requests, groups = random_instance(seed)
        placed = [each for each in place_all(requests, groups, OPTIONS).values() if each is not None]
        for where in groups:
            here = [each for each in placed if each.group_id == where.group_id]
            assert sum(each.time_share for each in here) <= where.free_time + 1e-9
            assert sum(each.memory_bytes for each in here) <= where.free_memory_bytes + 1e-3
        best = most_that_fit(requests, groups)
        assert len(placed) <= best
        placed_in_all += len(placed)
        best_in_all += best
    assert placed_in_all >= 0.9 * best_in_all


def chosen(each: PlacementRequest, *groups: DomainGroup) -> Placement:
    placement = place(each, groups, OPTIONS)
    assert placement is not None
    return placement


def test_a_loose_request_leaves_the_fast_group_to_tight_ones() -> None:
    slow, fast = group("slow"), group("fast", speed=4.0)
    assert chosen(request("loose", 900.0), fast, slow).group_id == "slow"
    assert chosen(request("tight", 150.0), fast, slow).group_id == "fast"


def test_precision_is_lost_only_where_the_contract_permits_it() -> None:
    strict = {each.precision for each in feasible_placements(request("a", 2000.0), [group("g")], OPTIONS)}
    lenient = request("a", 2000.0, precision_loss_allowed=True)
    assert strict == {"bfloat16"}
    assert {each.precision for each in feasible_placements(lenient, [group("g")], OPTIONS)} == {"bfloat16", "fp8"}
    hopeless = request("a", 190.0)
    assert place(hopeless, [group("g")], OPTIONS) is None
    assert chosen(request("a", 190.0, precision_loss_allowed=True), group("g")).precision == "fp8"


def test_contiguous_kv_is_chosen_only_where_its_memory_is_free() -> None:
    layouts = {each.kv_layout for each in feasible_placements(request("a", 2000.0), [group("g", memory=5e7)], OPTIONS)}
    assert layouts == {"paged"}


def test_waiting_uses_the_headroom_up() -> None:
    fresh = request("a", 400.0)
    late = PlacementRequest("a", fresh.contract, 100, 20, waited_s=0.15)
    assert max(each.headroom_s for each in feasible_placements(fresh, [group("g")], OPTIONS)) - 0.15 == pytest.approx(
        max(each.headroom_s for each in feasible_placements(late, [group("g")], OPTIONS))
    )


def test_each_milestone_counts() -> None:
    ttft = request("a", None, ttft=(Bound(0.99, 1.0),))
    tpot = request("a", None, tpot=(Bound(0.99, 10.7),))
    assert place(ttft, [group("g")], OPTIONS) is None
    assert {each.batch_cap for each in feasible_placements(tpot, [group("g")], OPTIONS)} == {1}
    assert math.isinf(chosen(request("a", None), group("g")).headroom_s)


def test_min_gpu_count_excludes_and_a_preferred_type_attracts() -> None:
    pair = request("a", 900.0, resources=ResourceConstraints(min_gpu_count=2, preferred_gpu_type="H100"))
    single, double = group("single"), group("double", speed=2.0, devices=2)
    preferred = group("h100", speed=4.0, devices=2, device_type="H100")
    assert chosen(pair, single, double).group_id == "double"
    assert chosen(pair, single, double, preferred).group_id == "h100"
