from __future__ import annotations

import math

import pytest

from superinfer.contracts.contract import Bound, ResourceConstraints, SLOContract
from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.pareto_demand import ModelCosts, contract_demand
from superinfer.scheduler.topology import OfferedLoad

MODEL = LatencyModel(
    launch_s=1e-3,
    linear_points=[(1, 1e-2), (8, 1.2e-2), (128, 6e-2), (512, 0.24)],
    decode_context_s=1e-7,
    decode_s=1e-5,
    prefill_pair_s=1e-8,
    chunk_s=1e-5,
    row_s=1e-4,
)
COSTS = ModelCosts(MODEL, weight_bytes=2e9, kv_bytes_per_token=1e5)
LOAD = OfferedLoad(rate_per_s=2.0, prompt_tokens=100, output_tokens=11)


def contract(**terms: object) -> SLOContract:
    return SLOContract(service_id="a", **terms)  # type: ignore[arg-type]


def test_floors_are_the_unloaded_times_of_each_milestone() -> None:
    bound = (Bound(0.99, 900.0),)
    each = contract_demand(contract(latency=bound, ttft=bound, tpot=bound), "a", LOAD, COSTS, decode_batch=1)
    floors = {bound.milestone: bound.floor_s for bound in each.bounds}
    prefill_s, step_s = MODEL.prefill_s(0, 100), MODEL.decode_step_s(105)
    assert floors["ttft"] == pytest.approx(1.1 * prefill_s)
    assert floors["tpot"] == pytest.approx(1.1 * 10 * step_s)
    assert floors["latency"] == pytest.approx(floors["ttft"] + floors["tpot"])
    assert [bound.bound_s for bound in each.bounds] == pytest.approx([0.9, 0.9, 9.0])
    assert each.work_s == pytest.approx(prefill_s + 10 * step_s)


def test_decodes_that_share_steps_cost_less_work_and_a_longer_floor() -> None:
    alone = contract_demand(contract(), "a", LOAD, COSTS, decode_batch=1)
    shared = contract_demand(contract(), "a", LOAD, COSTS, decode_batch=8)
    assert shared.work_s < alone.work_s
    assert shared.floor_s > alone.floor_s
    assert shared.gb_per_busy_s * shared.work_s < alone.gb_per_busy_s * alone.work_s


def test_the_tightest_bound_decides_the_headroom_and_none_is_enough_below_the_floor() -> None:
    loose = contract_demand(contract(latency=(Bound(0.99, 5000.0),)), "a", LOAD, COSTS)
    both = contract_demand(contract(latency=(Bound(0.5, 400.0), Bound(0.99, 5000.0))), "a", LOAD, COSTS)
    assert both.headroom(1.0) > loose.headroom(1.0) > loose.headroom(2.0) > 0.0
    left_s = 0.4 - both.bounds[0].floor_s
    assert both.headroom(1.0) == pytest.approx(both.work_s * math.log(2) / left_s)
    assert math.isinf(contract_demand(contract(ttft=(Bound(0.99, 10.0),)), "a", LOAD, COSTS).headroom(1.0))


def test_jitter_asks_for_headroom_and_resources_are_carried_over() -> None:
    each = contract_demand(
        contract(max_jitter_ms=50.0, resources=ResourceConstraints(min_gpu_count=2, memory_per_gpu_mb=4000.0)),
        "a",
        LOAD,
        COSTS,
    )
    assert not each.is_best_effort
    assert each.headroom(1.0) == pytest.approx(each.work_s / 0.05)
    assert (each.min_devices, each.reserved_memory_gb) == (2, 4.0)
    assert each.request_memory_gb == pytest.approx(111 * 1e5 / 1e9)


def test_a_contract_without_bounds_is_best_effort_and_needs_no_headroom() -> None:
    each = contract_demand(contract(), "a", LOAD, COSTS)
    assert each.is_best_effort
    assert each.headroom(1.0) == 0.0
