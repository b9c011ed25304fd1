"""The sweep's step plans: valid by the executor's rules, and timed steps are exactly the points asked for."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from superinfer.executor.core_wait import core_wait_s
from superinfer.executor.sweep import HOST_BLOCKS, SweepRunner
from superinfer.profiler.fit import fit_latency_model
from superinfer.profiler.latency_model import LatencyModel, StepShape
from superinfer.profiler.measure import measure
from superinfer.profiler.sweep_points import ALL_POINTS, SweepPoint
from superinfer.scheduler.steps import NewSequence, StepPlan, StepResult

BLOCK_SIZE = 16
COSTS = LatencyModel(
    launch_s=0.06,
    linear_points=[(1, 0.003), (32, 0.09), (256, 0.768)],
    decode_context_s=5e-6,
    decode_s=2e-4,
    prefill_pair_s=1e-6,
    chunk_s=0.001,
    row_s=0.001,
)


class CheckingExecutor:
    """An executor with known costs that holds every plan to the worker's rules."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.sequences: dict[int, NewSequence] = {}
        self.tables: dict[int, list[int]] = {}
        self.written: set[int] = set()
        self.shapes: list[StepShape] = []

    def execute(self, plan: StepPlan) -> StepResult:
        started_s = self.now_s
        for sequence_id in plan.finished:
            del self.sequences[sequence_id]
            del self.tables[sequence_id]
        for rotation in plan.rotate_out:
            assert [block for block, _ in rotation.pairs] == self.tables[rotation.sequence_id]
            assert all(0 <= host < HOST_BLOCKS for _, host in rotation.pairs)
            self.tables[rotation.sequence_id] = []
        for rotation in plan.rotate_in:
            assert all(0 <= host < HOST_BLOCKS for host, _ in rotation.pairs)
            self.tables[rotation.sequence_id] = [block for _, block in rotation.pairs]
            self.written.update(self.tables[rotation.sequence_id])
        for new in plan.new_sequences:
            assert new.sequence_id not in self.sequences
            self.sequences[new.sequence_id] = new
            self.tables[new.sequence_id] = []
        if plan.sequences or plan.decodes:
            self._compute(plan)
        return StepResult(domain_id=plan.domain_id, step_id=plan.step_id, started_s=started_s, finished_s=self.now_s)

    def _compute(self, plan: StepPlan) -> None:
        shape = StepShape()
        used: list[int] = []
        for sequence_id, block in plan.decode_blocks:
            assert sequence_id in plan.decodes
            self.tables[sequence_id].append(block)
        for sequence_id in plan.decodes:
            sequence, table = self.sequences[sequence_id], self.tables[sequence_id]
            used.extend(table)
            assert len(sequence.token_ids) == sequence.prompt_length + 1
            assert len(table) == -(-len(sequence.token_ids) // BLOCK_SIZE)
            shape.add_decode(sequence.prompt_length)
        for step in plan.sequences:
            sequence = self.sequences[step.sequence_id]
            table = self.tables[step.sequence_id]
            table.extend(step.new_blocks)
            used.extend(table)
            end = step.start + step.count
            assert end <= len(sequence.token_ids)
            assert len(table) == -(-end // BLOCK_SIZE)
            assert step.count > 1
            shape.add_prefill(step.start, step.count, samples=end == len(sequence.token_ids))
        assert len(used) == len(set(used)), "two sequences share a block"
        if self.written:
            assert self.written.issuperset(used), "a context in memory that was never written"
        self.written.update(used)
        self.shapes.append(shape)
        self.now_s += COSTS.uncorrected_step_s(shape)


def make_runner(executor: CheckingExecutor) -> SweepRunner:
    return SweepRunner(executor, vocab_size=100, block_size=BLOCK_SIZE)


@pytest.mark.parametrize("point", ALL_POINTS, ids=lambda point: point.name)
def test_the_timed_step_is_the_point_and_nothing_else(point: SweepPoint) -> None:
    executor = CheckingExecutor()
    seconds = make_runner(executor)(point)
    assert executor.shapes[-1] == point.shape
    assert seconds == pytest.approx(COSTS.uncorrected_step_s(point.shape))


def test_the_fit_recovers_the_costs_of_the_executor_through_the_sweep() -> None:
    executor = CheckingExecutor()
    points = measure(ALL_POINTS, make_runner(executor), budget_s=10.0, passes=2)
    fitted = fit_latency_model([(p.shape, s) for p in points for s in p.seconds])
    assert fitted.errors.median_relative_error < 0.01
    for shape in (point.shape for point in ALL_POINTS):
        assert fitted.model.uncorrected_step_s(shape) == pytest.approx(COSTS.uncorrected_step_s(shape), rel=0.02)
    assert fitted.model.decode_context_s == pytest.approx(COSTS.decode_context_s, rel=0.1)
    assert fitted.model.prefill_pair_s == pytest.approx(COSTS.prefill_pair_s, rel=0.1)


def test_closing_leaves_no_sequence_behind() -> None:
    executor = CheckingExecutor()
    runner = make_runner(executor)
    runner(ALL_POINTS[0])
    runner(ALL_POINTS[4])
    runner.close()
    assert executor.sequences == {}


def test_time_that_others_had_the_core_is_taken_off_and_told() -> None:
    executor = CheckingExecutor()
    point = ALL_POINTS[0]
    runner = SweepRunner(executor, vocab_size=100, block_size=BLOCK_SIZE, waited_s=lambda: executor.now_s * 0.25)
    assert runner(point) == pytest.approx(0.75 * COSTS.uncorrected_step_s(point.shape))
    assert runner.waited_share == pytest.approx(0.25)
    assert make_runner(executor).waited_share == 0.0


def test_waiting_before_a_short_step_began_is_not_taken_off_its_time() -> None:
    class SlowToWake(CheckingExecutor):
        waited_s = 0.0

        def execute(self, plan: StepPlan) -> StepResult:
            time.sleep(0.02)
            self.waited_s += 0.02
            result = super().execute(plan)
            result.started_s = time.monotonic()
            time.sleep(0.03)
            result.finished_s = time.monotonic()
            return result

    executor = SlowToWake()
    runner = SweepRunner(executor, vocab_size=100, block_size=BLOCK_SIZE, waited_s=lambda: executor.waited_s)
    assert runner(ALL_POINTS[0]) >= 0.03
    assert runner.waited_share == 0.0


def test_core_wait_reads_the_kernels_count_and_is_zero_without_one(tmp_path: Path) -> None:
    process = tmp_path / "7"
    process.mkdir()
    (process / "schedstat").write_text("1000 2500000000 17\n")
    assert core_wait_s(7, tmp_path) == 2.5
    assert core_wait_s(8, tmp_path) == 0.0
    assert core_wait_s(os.getpid()) <= time.monotonic()
