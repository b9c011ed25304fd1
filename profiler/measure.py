"""The sweep that the latency model is fitted to, measured within a time budget, and what else follows from it.

All points are visited once before any is repeated, so that a small budget costs repeats and rare shapes rather than a
whole region, and so that a disturbance of some seconds does not fall on one point. Every sample can be recorded as it
is taken, and an interrupted sweep goes on from such records.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from superinfer.profiler.architecture import ModelArchitecture
from superinfer.profiler.static import step_flops, step_read_bytes
from superinfer.profiler.store import MeasuredPoint
from superinfer.profiler.sweep_points import SweepPoint

Progress = Callable[[str, int, int], None]
"""Called as (what is measured, visits done, visits in all)."""

DEFAULT_BUDGET_S = 75.0
DEFAULT_PASSES = 8
ESSENTIAL_POINTS = 8
FIRST_PASS_SHARE = 0.5


def measure(
    points: Sequence[SweepPoint],
    run_point: Callable[[SweepPoint], float],
    *,
    budget_s: float = DEFAULT_BUDGET_S,
    passes: int = DEFAULT_PASSES,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
    known: Mapping[SweepPoint, Sequence[tuple[float, float]]] | None = None,
    record: Callable[[SweepPoint, float, float], None] | None = None,
) -> list[MeasuredPoint]:
    """Run the points until the budget (wall seconds) is spent; `run_point` returns one step's device seconds.

    The first ESSENTIAL_POINTS are measured whatever they take. A point's first sample is cold (kernels compile, caches
    of shapes fill) and is dropped once there are two warm ones. `known` are samples of an earlier, interrupted sweep
    and when they were taken (before 0, the start of this one): they count as so many visits. `record` is called with
    the point, its seconds and those of the whole visit.
    """
    started_s = clock()
    samples: dict[SweepPoint, list[float]] = {}
    times_s: dict[SweepPoint, list[float]] = {}
    earlier = {point: list((known or {}).get(point, ())) for point in points}
    visit_s: dict[SweepPoint, float] = {}
    total = len(points) * passes
    done = 0
    for number in range(passes):
        allowed_s = budget_s * (FIRST_PASS_SHARE if number == 0 else 1.0)
        for index, point in enumerate(points):
            is_essential = number == 0 and index < ESSENTIAL_POINTS
            before_s = clock()
            expected_s = visit_s.get(point, 0.0)
            is_known = number == 0 or point in samples
            if earlier[point]:
                seconds, at_s = earlier[point].pop(0)
                samples.setdefault(point, []).append(seconds)
                times_s.setdefault(point, []).append(at_s)
            elif is_essential or (is_known and before_s - started_s + expected_s <= allowed_s):
                seconds = run_point(point)
                samples.setdefault(point, []).append(seconds)
                times_s.setdefault(point, []).append(before_s - started_s)
                visit_s[point] = clock() - before_s
                if record is not None:
                    record(point, seconds, visit_s[point])
            done += 1
            if progress is not None:
                progress(point.name, done, total)
    return [_measured_point(point, seconds, times_s[point]) for point, seconds in samples.items()]


def achieved_rates(
    points: Sequence[MeasuredPoint], architecture: ModelArchitecture, dtype: str, weight_dtype: str | None = None
) -> tuple[float, float]:
    """(GFLOP/s of the best pure prefill step, GB/s read by the best pure decode step); 0 where there is none.

    `weight_dtype` is that of the weights where they are held in another than `dtype`.
    """
    prefill = [
        step_flops(architecture, point.shape) / statistics.median(point.seconds) / 1e9
        for point in points
        if point.decodes == 0
    ]
    decode = [
        step_read_bytes(
            architecture, dtype, tokens=point.tokens, context=point.decode_context, weight_dtype=weight_dtype
        )
        / statistics.median(point.seconds)
        / 1e9
        for point in points
        if point.chunks == 0
    ]
    return max(prefill, default=0.0), max(decode, default=0.0)


def _measured_point(point: SweepPoint, seconds: list[float], times_s: list[float]) -> MeasuredPoint:
    shape = point.shape
    first = 1 if len(seconds) >= 3 else 0
    return MeasuredPoint(
        name=point.name,
        tokens=shape.tokens,
        decodes=shape.decodes,
        decode_context=shape.decode_context,
        prefill_pairs=shape.prefill_pairs,
        rows=shape.rows,
        chunks=shape.chunks,
        seconds=seconds[first:],
        at_s=[round(at_s, 2) for at_s in times_s[first:]],
    )
