"""The sweep: its order under a time budget, its limits, and the rates computed from it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superinfer.profiler.architecture import architecture_from_config
from superinfer.profiler.fit import fit_latency_model
from superinfer.profiler.latency_model import LatencyModel
from superinfer.profiler.measure import ESSENTIAL_POINTS, achieved_rates, measure
from superinfer.profiler.static import step_flops, step_read_bytes
from superinfer.profiler.sweep_log import MAX_AGE_S, SweepLog, SweepSubject
from superinfer.profiler.sweep_points import ALL_POINTS, SweepLimits, SweepPoint, sweep_points

from .small_config import SMALL_LLAMA

ROOMY = SweepLimits(max_step_tokens=256, max_model_len=2048, kv_blocks=4000, block_size=16)
DEVICE = LatencyModel(
    launch_s=0.06,
    linear_points=[(1, 0.003), (256, 0.768)],
    decode_context_s=5e-6,
    decode_s=0.0,
    prefill_pair_s=1e-6,
    chunk_s=0.001,
    row_s=0.001,
)

ARCHITECTURE = architecture_from_config(SMALL_LLAMA)
SUBJECT = SweepSubject(model="tiny", architecture=ARCHITECTURE, dtype="float32", device="Some CPU", threads=1)


class FakeDevice:
    """Runs points on a clock of its own; the first step of every token count takes twice as long."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.visited: list[SweepPoint] = []

    def clock(self) -> float:
        return self.now_s

    def run(self, point: SweepPoint) -> float:
        seconds = DEVICE.uncorrected_step_s(point.shape) * (1 if point in self.visited else 2)
        self.visited.append(point)
        self.now_s += seconds
        return seconds


def test_with_time_enough_every_point_is_repeated_and_its_cold_sample_dropped() -> None:
    device = FakeDevice()
    points = measure(ALL_POINTS, device.run, budget_s=1000, passes=4, clock=device.clock)
    assert len(points) == len(ALL_POINTS)
    for point in points:
        assert point.seconds == pytest.approx([DEVICE.uncorrected_step_s(point.shape)] * 3)


@pytest.mark.parametrize("budget_s", [5.0, 15.0, 45.0])
def test_the_budget_holds_and_cuts_the_last_points_first(budget_s: float) -> None:
    device = FakeDevice()
    points = measure(ALL_POINTS, device.run, budget_s=budget_s, clock=device.clock)
    longest_s = 2 * max(DEVICE.uncorrected_step_s(point.shape) for point in ALL_POINTS)
    assert device.now_s <= budget_s + longest_s
    names = [point.name for point in points]
    assert names == [point.name for point in ALL_POINTS[: len(names)]]
    assert fit_latency_model([(p.shape, s) for p in points for s in p.seconds]).errors.shapes == len(points)


def test_the_essential_points_are_measured_whatever_they_take() -> None:
    device = FakeDevice()
    points = measure(ALL_POINTS, device.run, budget_s=0.01, clock=device.clock)
    assert [p.name for p in points] == [p.name for p in ALL_POINTS[:ESSENTIAL_POINTS]]
    assert fit_latency_model([(p.shape, s) for p in points for s in p.seconds]).errors.shapes == len(points)


def test_progress_goes_up_to_the_total_even_where_points_are_cut() -> None:
    device = FakeDevice()
    seen: list[tuple[int, int]] = []
    measure(
        ALL_POINTS,
        device.run,
        budget_s=5.0,
        clock=device.clock,
        progress=lambda what, done, total: seen.append((done, total)),
    )
    assert [done for done, _ in seen] == list(range(1, len(seen) + 1))
    assert seen[-1][0] == seen[-1][1]


def test_the_points_differ_and_the_sweep_covers_each_phase_early() -> None:
    assert len(set(ALL_POINTS)) == len(ALL_POINTS)
    early = ALL_POINTS[:ESSENTIAL_POINTS]
    assert any(p.contexts and p.chunks for p in early)
    assert any(p.contexts and not p.chunks for p in early)
    assert any(p.chunks and not p.contexts for p in early)


@given(
    max_step_tokens=st.integers(1, 600),
    max_model_len=st.integers(2, 3000),
    kv_blocks=st.integers(1, 5000),
    block_size=st.sampled_from([8, 16, 32]),
)
def test_every_point_of_the_sweep_fits_the_executor(
    max_step_tokens: int, max_model_len: int, kv_blocks: int, block_size: int
) -> None:
    limits = SweepLimits(max_step_tokens, max_model_len, kv_blocks, block_size)
    for point in sweep_points(limits):
        assert point.shape.tokens <= max_step_tokens
        assert point.blocks(block_size) <= kv_blocks
        assert point.longest + 1 <= max_model_len


def test_a_roomy_executor_runs_the_whole_sweep() -> None:
    assert sweep_points(ROOMY) == list(ALL_POINTS)


def test_rates_are_those_of_the_best_pure_prefill_and_decode_steps() -> None:
    device = FakeDevice()
    points = measure(ALL_POINTS, device.run, budget_s=1000, clock=device.clock)
    gflop_per_s, gb_per_s = achieved_rates(points, ARCHITECTURE, "float32")
    seconds = DEVICE.uncorrected_step_s
    prefill = [p.shape for p in ALL_POINTS if not p.contexts]
    decode = [p.shape for p in ALL_POINTS if not p.chunks]
    assert gflop_per_s == pytest.approx(max(step_flops(ARCHITECTURE, s) / seconds(s) for s in prefill) / 1e9)
    assert gb_per_s == pytest.approx(
        max(
            step_read_bytes(ARCHITECTURE, "float32", tokens=s.tokens, context=s.decode_context) / seconds(s)
            for s in decode
        )
        / 1e9
    )


def test_weights_held_in_half_the_bytes_are_counted_so() -> None:
    device = FakeDevice()
    points = measure(ALL_POINTS[:1], device.run, budget_s=1000, clock=device.clock)
    whole, held = (achieved_rates(points, ARCHITECTURE, "float32", dtype)[1] for dtype in (None, "bfloat16"))
    cache = step_read_bytes(ARCHITECTURE, "float32", tokens=1, context=128) - step_read_bytes(
        ARCHITECTURE, "float32", tokens=1, context=0
    )
    cache_gb_per_s = cache / points[0].seconds[-1] / 1e9
    assert held - cache_gb_per_s == pytest.approx((whole - cache_gb_per_s) / 2)


class InterruptedSweepError(Exception):
    pass


def test_an_interrupted_sweep_goes_on_where_it_was_and_ends_with_the_same_points(tmp_path: Path) -> None:
    points, path = ALL_POINTS[:12], tmp_path / "sweep.jsonl"
    first, log = FakeDevice(), SweepLog(path, SUBJECT)

    def run_a_while(point: SweepPoint) -> float:
        if len(first.visited) == 17:
            raise InterruptedSweepError
        return first.run(point)

    with pytest.raises(InterruptedSweepError):
        measure(points, run_a_while, budget_s=1000, passes=3, clock=first.clock, record=log.append)
    with path.open("ab") as file:
        file.write(b'{"point": "cut off')
    second, again = FakeDevice(), SweepLog(path, SUBJECT)
    second.visited = list(first.visited)
    assert again.spent_s == pytest.approx(first.now_s)
    found = measure(
        points,
        second.run,
        budget_s=1000,
        passes=3,
        clock=second.clock,
        known=again.known(points),
        record=again.append,
    )
    undisturbed = FakeDevice()
    whole = measure(points, undisturbed.run, budget_s=1000, passes=3, clock=undisturbed.clock)
    assert [(p.shape, p.seconds) for p in found] == [(p.shape, p.seconds) for p in whole]
    assert found[0].at_s[0] <= 0.0
    assert found[-1].at_s[-1] > 0.0
    assert len(second.visited) == 3 * len(points)
    again.remove()
    assert not path.exists()


def test_samples_of_another_model_or_of_long_ago_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / "sweep.jsonl"
    SweepLog(path, SUBJECT).append(ALL_POINTS[0], 0.1, 0.2)
    ((seconds, at_s),) = SweepLog(path, SUBJECT).known(ALL_POINTS)[ALL_POINTS[0]]
    assert seconds == 0.1
    assert at_s <= 0.0
    late_s = path.stat().st_mtime + MAX_AGE_S + 1
    assert SweepLog(path, SUBJECT, now_s=late_s).samples == []
    SweepLog(path, SUBJECT).append(ALL_POINTS[0], 0.1, 0.2)
    assert SweepLog(path, msgspec.structs.replace(SUBJECT, dtype="bfloat16")).samples == []


def test_every_point_has_a_name_of_its_own() -> None:
    assert len({point.name for point in ALL_POINTS}) == len(ALL_POINTS)
