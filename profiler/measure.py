"""The sweep of step shapes that the latency model is fitted to, and how it is measured within a time budget.

A point is one engine step: some decodes with equal contexts, or a prefill chunk, or both. The most telling
points come first. All points are visited once before any is repeated, so that a small budget costs repeats
and rare shapes rather than a whole region, and so that a disturbance of some seconds does not fall on one
point.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from superinfer.profiler.architecture import ModelArchitecture
from superinfer.profiler.latency_model import StepShape
from superinfer.profiler.static import step_flops, step_read_bytes
from superinfer.profiler.store import MeasuredPoint

Progress = Callable[[str, int, int], None]
"""Called as (what is measured, visits done, visits in all)."""

DEFAULT_BUDGET_S = 45.0
DEFAULT_PASSES = 4
ESSENTIAL_POINTS = 8
FIRST_PASS_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One step: `decodes` sequences with `context` cached tokens each, and a prefill chunk of `chunk` tokens
    after `start` cached ones (0: none) that ends its prompt if `samples`.
    """

    decodes: int = 0
    context: int = 0
    chunk: int = 0
    start: int = 0
    samples: bool = False

    @property
    def name(self) -> str:
        """A short description for progress and feature file."""
        parts = []
        if self.decodes:
            parts.append(f"decode {self.decodes} x {self.context}")
        if self.chunk:
            parts.append(f"prefill {self.chunk} after {self.start}" + (" + sample" if self.samples else ""))
        return ", ".join(parts)

    @property
    def shape(self) -> StepShape:
        """The step as the latency model sees it."""
        shape = StepShape()
        for _ in range(self.decodes):
            shape.add_decode(self.context)
        if self.chunk:
            shape.add_prefill(self.start, self.chunk, samples=self.samples)
        return shape

    def blocks(self, block_size: int) -> int:
        """KV blocks that all sequences of the step occupy."""
        decode_blocks = self.decodes * -(-(self.context + 1) // block_size)
        return decode_blocks + -(-(self.start + self.chunk) // block_size)


@dataclass(frozen=True, slots=True)
class SweepLimits:
    """What the executor can hold."""

    max_step_tokens: int
    max_model_len: int
    kv_blocks: int
    block_size: int

    def allow(self, point: SweepPoint) -> bool:
        """Whether the step fits; a sequence keeps room for the token sampled next."""
        longest = max(point.context + 1 if point.decodes else 0, point.start + point.chunk)
        return (
            point.decodes + point.chunk <= self.max_step_tokens
            and longest < self.max_model_len
            and point.blocks(self.block_size) <= self.kv_blocks
        )


def _decode(decodes: int, context: int) -> SweepPoint:
    return SweepPoint(decodes=decodes, context=context)


def _prefill(chunk: int, start: int = 0, *, samples: bool = False) -> SweepPoint:
    return SweepPoint(chunk=chunk, start=start, samples=samples)


def _mixed(decodes: int, context: int, chunk: int, start: int = 0, *, samples: bool = False) -> SweepPoint:
    return SweepPoint(decodes, context, chunk, start, samples)


ALL_POINTS = (
    _decode(1, 128),
    _prefill(64, samples=True),
    _decode(8, 128),
    _prefill(256),
    _mixed(4, 256, 32),
    _decode(32, 64),
    _prefill(16, 256, samples=True),
    _decode(1, 1000),
    _prefill(128, samples=True),
    _decode(16, 256),
    _mixed(16, 128, 64, 128, samples=True),
    _decode(4, 512),
    _prefill(64, 512),
    _decode(2, 128),
    _decode(8, 1000),
    _mixed(8, 256, 128, 256),
    _prefill(32, samples=True),
    _decode(32, 512),
    _prefill(128, 512),
    _mixed(31, 128, 96, samples=True),
    _decode(1, 16),
    _prefill(256, 256, samples=True),
    _decode(24, 128),
    _mixed(1, 512, 200),
    _decode(4, 64),
    _prefill(8, 64),
    _decode(64, 64),
    _prefill(96, 128),
    _decode(12, 700),
    _mixed(24, 300, 32, 64),
    _prefill(16, samples=True),
    _decode(3, 300),
    _decode(48, 256),
    _prefill(192, 64, samples=True),
    _decode(6, 900),
    _mixed(2, 100, 254),
    _prefill(32, 800),
    _decode(32, 1000),
    _prefill(4, 128),
    _mixed(48, 100, 16, 500),
    _prefill(256, 700),
    _decode(2, 700),
)


def sweep_points(limits: SweepLimits) -> list[SweepPoint]:
    """All points that the executor can hold, the most telling ones first."""
    return [point for point in ALL_POINTS if limits.allow(point)]


def measure(
    points: Sequence[SweepPoint],
    run_point: Callable[[SweepPoint], float],
    *,
    budget_s: float = DEFAULT_BUDGET_S,
    passes: int = DEFAULT_PASSES,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> list[MeasuredPoint]:
    """Run the points until the budget (wall seconds) is spent; `run_point` returns one step's device seconds.

    The first ESSENTIAL_POINTS are measured whatever they take. A point's first sample is cold (kernels
    compile, caches of shapes fill) and is dropped once there are two warm ones.
    """
    started_s = clock()
    samples: dict[SweepPoint, list[float]] = {}
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
            if is_essential or (is_known and before_s - started_s + expected_s <= allowed_s):
                samples.setdefault(point, []).append(run_point(point))
                visit_s[point] = clock() - before_s
            done += 1
            if progress is not None:
                progress(point.name, done, total)
    return [_measured_point(point, seconds) for point, seconds in samples.items()]


def achieved_rates(points: Sequence[MeasuredPoint], architecture: ModelArchitecture, dtype: str) -> tuple[float, float]:
    """(GFLOP/s of the best pure prefill step, GB/s read by the best pure decode step); 0 where there is none."""
    prefill = [
        step_flops(architecture, point.shape) / statistics.median(point.seconds) / 1e9
        for point in points
        if point.decodes == 0
    ]
    decode = [
        step_read_bytes(architecture, dtype, tokens=point.tokens, context=point.decode_context)
        / statistics.median(point.seconds)
        / 1e9
        for point in points
        if point.chunks == 0
    ]
    return max(prefill, default=0.0), max(decode, default=0.0)


def _measured_point(point: SweepPoint, seconds: list[float]) -> MeasuredPoint:
    shape = point.shape
    return MeasuredPoint(
        name=point.name,
        tokens=shape.tokens,
        decodes=shape.decodes,
        decode_context=shape.decode_context,
        prefill_pairs=shape.prefill_pairs,
        rows=shape.rows,
        chunks=shape.chunks,
        seconds=seconds[1:] if len(seconds) >= 3 else seconds,
    )
