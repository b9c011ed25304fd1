"""When the engine plans a domain's next step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superinfer.executor.cores import assign_cores
from superinfer.executor.idle_class import PATIENCE
from superinfer.executor.pipeline import HANG_S, LEAD_S, StepPipeline
from superinfer.scheduler.steps import StepPlan, StepResult


def plan(step_id: int, predicted_s: float) -> StepPlan:
    return StepPlan(domain_id="0", step_id=step_id, predicted_s=predicted_s)


def result(step_id: int, started_s: float, finished_s: float) -> StepResult:
    return StepResult(domain_id="0", step_id=step_id, started_s=started_s, finished_s=finished_s)


def test_an_idle_domain_is_planned_at_once():
    assert StepPipeline().plan_at_s == 0.0


def test_the_second_plan_is_due_just_before_the_first_steps_expected_end():
    pipeline = StepPipeline()
    pipeline.sent(plan(0, 0.1), now=50.0, planning_s=0.0)
    assert pipeline.plan_at_s == pytest.approx(50.1 - LEAD_S)


def test_slow_planning_begins_earlier():
    pipeline = StepPipeline()
    for step in range(40):
        pipeline.sent(plan(step, 0.1), now=float(step), planning_s=0.01)
        pipeline.received(result(step, step, step + 0.1))
    pipeline.sent(plan(40, 0.1), now=50.0, planning_s=0.01)
    assert pipeline.plan_at_s == pytest.approx(50.1 - LEAD_S - 0.015, abs=1e-4)


def test_steps_slower_than_predicted_move_the_next_plan():
    pipeline = StepPipeline()
    for step in range(40):
        pipeline.sent(plan(step, 0.1), now=float(step), planning_s=0.0)
        pipeline.received(result(step, step, step + 0.2))
    pipeline.sent(plan(40, 0.1), now=50.0, planning_s=0.0)
    assert pipeline.plan_at_s == pytest.approx(50.2 - LEAD_S, abs=1e-3)


def test_the_waiting_step_starts_when_the_running_one_ends():
    pipeline = StepPipeline()
    pipeline.sent(plan(0, 0.1), now=50.0, planning_s=0.0)
    pipeline.sent(plan(1, 0.3), now=50.09, planning_s=0.0)
    assert pipeline.plan_at_s is None
    pipeline.received(result(0, 50.0, 50.1))
    assert pipeline.expected_end_s == pytest.approx(50.4)


def test_a_step_that_leaves_its_core_for_too_long_is_recalled_once():
    pipeline = StepPipeline()
    pipeline.sent(plan(0, 0.1), now=50.0, planning_s=0.0)
    assert pipeline.patience_ends_s is None
    pipeline.sent(StepPlan(domain_id="0", step_id=1, predicted_s=0.1, leaves_core=True), now=50.05, planning_s=0.0)
    assert pipeline.patience_ends_s is None
    pipeline.received(result(0, 50.0, 50.1))
    assert pipeline.patience_ends_s == pytest.approx(50.1 + PATIENCE * 0.1)
    pipeline.lost_patience(is_recalled=False)
    assert pipeline.patience_ends_s == pytest.approx(50.1 + 2 * PATIENCE * 0.1)
    pipeline.lost_patience(is_recalled=True)
    assert pipeline.patience_ends_s is None
    ratio = pipeline.ratio
    pipeline.received(result(1, 50.1, 51.1))
    assert pipeline.ratio == ratio  # somebody had its core: that says nothing of those to come


def test_a_step_without_a_result_counts_as_hung_after_the_longer_of_the_two_bounds():
    pipeline = StepPipeline()
    assert pipeline.hung_at_s is None
    pipeline.sent(plan(0, 0.1), now=50.0, planning_s=0.0)
    assert pipeline.hung_at_s == 50.0 + HANG_S
    pipeline.clear()
    pipeline.sent(plan(1, 10.0), now=50.0, planning_s=0.0)
    assert pipeline.hung_at_s == 250.0


def test_a_result_out_of_order_is_refused():
    pipeline = StepPipeline()
    pipeline.sent(plan(0, 0.1), now=0.0, planning_s=0.0)
    pipeline.sent(plan(1, 0.1), now=0.0, planning_s=0.0)
    with pytest.raises(ValueError, match="step 1"):
        pipeline.received(result(1, 0.0, 0.1))


@given(st.integers(1, 40), st.sets(st.integers(0, 200), min_size=1, max_size=64))
def test_core_assignment_is_within_the_given_cores_and_shares_only_when_it_must(domains, cores):
    workers, engine = assign_cores(domains, list(cores))
    used = [core for worker in workers for core in worker]
    assert len(workers) == domains
    assert all(len(worker) == 1 for worker in workers)
    assert set(used) | set(engine) <= cores
    assert max(used.count(core) for core in used) - min(used.count(core) for core in set(used)) <= 1
    if domains < len(cores):
        assert len(set(used)) == domains
        assert set(used).isdisjoint(engine)
    else:
        assert set(engine) == cores
