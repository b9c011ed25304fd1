"""Fit the latency model's constants to measured steps.

Every constant enters a step's time linearly, the curve of the linear layers as well once it is written as a
sum of ramps between its knots. So one non-negative least-squares problem (SciPy's nnls) gives all constants
at once, and a ramp slope that cannot be negative makes the curve monotone. Errors are relative to the
measured time; iteratively re-weighted by Cauchy's weight, so that a step the machine interrupted hardly
counts. What the model is worth is judged on steps it has not seen: each fold of distinct shapes is predicted
by a fit of the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from superinfer.profiler.drift import StepNoise, log_speed, step_noise
from superinfer.profiler.latency_model import LatencyModel, StepShape
from superinfer.profiler.store import FitErrors, MeasuredPoint

Array = NDArray[np.float64]
MeasuredStep = tuple[StepShape, float]

QUANTILES = (0.5, 0.9, 0.99)
KNOT_RATIO = 1.35
EVERY_COUNT_TO = 8
"""Up to so many tokens every measured count is a knot: kernels have tiles of a few tokens, and times rise in steps."""
SMOOTHING = 0.1
CAUCHY_TUNING = 2.385
SMALLEST_SCALE = 0.01
MAX_ROUNDS = 12
MAX_FOLDS = 24
OTHER_COLUMNS = 7


class FitResult(msgspec.Struct, frozen=True, kw_only=True):
    """The fitted model, what it is worth, and the noise that is left; None where the steps' times are not known."""

    model: LatencyModel
    errors: FitErrors
    noise: StepNoise | None = None


def fit_points(points: Sequence[MeasuredPoint]) -> FitResult:
    """Fit all constants to the points of a sweep; see `fit_latency_model`."""
    steps = [(point.shape, seconds) for point in points for seconds in point.seconds]
    times_s = [at_s for point in points for at_s in point.at_s]
    return fit_latency_model(steps, times_s if len(times_s) == len(steps) else None)


def fit_latency_model(steps: Sequence[MeasuredStep], times_s: Sequence[float] | None = None) -> FitResult:
    """Fit all constants to (shape, seconds); ValueError where the steps cannot tell a curve.

    Repeated measurements of a shape are passed one by one: their spread is part of `residual_quantiles`, the ratio
    measured / predicted over held-out steps. With `times_s`, when each was measured, the device's drift is told from
    the cost of shapes, and the quantiles are those that remain with the online correction.
    """
    shapes = [shape for shape, _ in steps]
    seconds = np.array([measured for _, measured in steps], dtype=np.float64)
    if not np.all(np.isfinite(seconds) & (seconds > 0.0)):
        raise ValueError("a measured step time must be finite and above zero")
    knots = choose_knots([shape.tokens for shape in shapes])
    if len(knots) < 2:
        raise ValueError("steps of at least two different token counts are needed")
    groups = _shape_groups(shapes)
    if len(groups) < 3:
        raise ValueError("steps of at least three different shapes are needed")
    columns = _design(shapes, knots)
    usual = seconds
    if times_s is not None:
        first = np.log(seconds / np.maximum(columns @ _solve(columns, seconds, knots), 1e-12))
        usual = seconds * np.exp(-log_speed(first, np.array(times_s, dtype=np.float64)))
    ratios = _held_out_ratios(columns, usual, seconds, groups, knots)
    constants = _solve(columns, usual, knots)
    tracked, noise = ratios, None
    if times_s is not None:
        tracked = _tracked_ratios(ratios, np.argsort(times_s, kind="stable"))
        noise = step_noise(np.log(ratios), np.array(times_s, dtype=np.float64))
    return FitResult(
        model=_model(constants, knots, tracked),
        errors=_errors(ratios, None if times_s is None else tracked, len(groups)),
        noise=noise,
    )


def _errors(ratios: Array, tracked: Array | None, shapes: int) -> FitErrors:
    """Relative errors |predicted − measured| / measured; a ratio is measured / predicted."""
    errors = np.abs(1.0 / ratios - 1.0)
    tracked_errors = None if tracked is None else np.abs(1.0 / tracked - 1.0)
    return FitErrors(
        steps=len(ratios),
        shapes=shapes,
        median_relative_error=float(np.median(errors)),
        p90_relative_error=float(np.quantile(errors, 0.9)),
        tracked_median_relative_error=None if tracked_errors is None else float(np.median(tracked_errors)),
        tracked_p90_relative_error=None if tracked_errors is None else float(np.quantile(tracked_errors, 0.9)),
    )


def _tracked_ratios(ratios: Array, order: NDArray[np.int64]) -> Array:
    """Measured / predicted with the correction that the steps before, in `order`, have taught the prediction."""
    model = LatencyModel(1.0, [(1.0, 0.0), (2.0, 0.0)], 0.0, 0.0, 0.0, 0.0, 0.0)
    one = StepShape(tokens=1)
    tracked = np.empty(len(ratios))
    for step in order:
        tracked[step] = ratios[step] / model.step_s(one)
        model.observe(one, float(ratios[step]))
    return tracked


def choose_knots(token_counts: Sequence[int]) -> list[int]:
    """Knots of the linear curve: measured token counts that are few, others KNOT_RATIO apart or more, both ends."""
    counts = sorted(set(token_counts))
    knots = counts[:1]
    for count in counts[1:]:
        if count <= EVERY_COUNT_TO or count >= knots[-1] * KNOT_RATIO:
            knots.append(count)
    if len(counts) > 1 and knots[-1] != counts[-1]:
        if len(knots) > 1:
            knots[-1] = counts[-1]
        else:
            knots.append(counts[-1])
    return knots


def _design(shapes: Sequence[StepShape], knots: Sequence[int]) -> Array:
    """One row a step: constant, decode context, decodes, prefill pairs, chunks, rows, any rows, a ramp a segment.

    The last ramp goes on beyond the last knot, as the model extrapolates.
    """
    tokens = np.array([shape.tokens for shape in shapes], dtype=np.float64)
    ramps = [
        np.clip(tokens - low, 0.0, None if high == knots[-1] else high - low) for low, high in itertools.pairwise(knots)
    ]
    others = [[1.0, s.decode_context, s.decodes, s.prefill_pairs, s.chunks, s.rows, s.rows > 0] for s in shapes]
    return np.column_stack([np.array(others, dtype=np.float64), *ramps])


def _solve(columns: Array, seconds: Array, knots: Sequence[int]) -> Array:
    """Non-negative constants with the least robust relative error."""
    relative = columns / seconds[:, None]
    scale = np.sqrt(np.mean(relative**2, axis=0))
    scale[scale == 0.0] = 1.0
    smoothing = _smoothing_rows(columns, seconds, knots) / scale
    weights = np.ones(len(seconds))
    solution = np.zeros(columns.shape[1])
    for _ in range(MAX_ROUNDS):
        root = np.sqrt(weights / len(seconds))
        matrix = np.vstack([relative / scale * root[:, None], smoothing])
        target = np.concatenate([root, np.zeros(len(smoothing))])
        previous, solution = solution, nnls(matrix, target)[0]
        if np.allclose(previous, solution, rtol=1e-4, atol=1e-9):
            break
        residual = relative / scale @ solution - 1.0
        spread = max(1.4826 * float(np.median(np.abs(residual))), SMALLEST_SCALE)
        weights = 1.0 / (1.0 + (residual / (CAUCHY_TUNING * spread)) ** 2)
    constants = solution / scale
    # Errors relative to the measured time favour predictions below it where times scatter widely.
    return np.asarray(constants * np.median(seconds / np.maximum(columns @ constants, 1e-12)), dtype=np.float64)


def _smoothing_rows(columns: Array, seconds: Array, knots: Sequence[int]) -> Array:
    """Weak ties between the slopes of neighbouring segments, so that noise does not make the curve jump."""
    middle = np.sqrt(np.array(knots[:-1], dtype=np.float64) * np.array(knots[1:], dtype=np.float64))
    typical = float(np.median(seconds))
    rows = np.zeros((len(knots) - 2, columns.shape[1]))
    for i in range(len(rows)):
        reach = middle[i + 1] - middle[i]
        rows[i, OTHER_COLUMNS + i] = -SMOOTHING * reach / typical
        rows[i, OTHER_COLUMNS + i + 1] = SMOOTHING * reach / typical
    return rows


def _held_out_ratios(
    columns: Array, usual: Array, seconds: Array, groups: Sequence[Sequence[int]], knots: Sequence[int]
) -> Array:
    """Measured / predicted of every step, predicted by a fit to the `usual` times that saw no step of its shape."""
    folds = min(len(groups), MAX_FOLDS)
    ratios = np.empty(len(seconds))
    for fold in range(folds):
        held_out = np.array([step for group in groups[fold::folds] for step in group])
        kept = np.setdiff1d(np.arange(len(seconds)), held_out)
        constants = _solve(columns[kept], usual[kept], knots)
        predicted = columns[held_out] @ constants
        ratios[held_out] = seconds[held_out] / np.maximum(predicted, 1e-12)
    return ratios


def _shape_groups(shapes: Sequence[StepShape]) -> list[list[int]]:
    groups: dict[Any, list[int]] = {}
    for index, s in enumerate(shapes):
        key = (s.tokens, s.decodes, s.decode_context, s.prefill_pairs, s.rows, s.chunks)
        groups.setdefault(key, []).append(index)
    return list(groups.values())


def _model(constants: Array, knots: Sequence[int], ratios: Array) -> LatencyModel:
    launch, decode_context, decode, prefill_pair, chunk, row, head = (float(c) for c in constants[:OTHER_COLUMNS])
    slopes = constants[OTHER_COLUMNS:]
    times = np.concatenate([[0.0], np.cumsum(slopes * np.diff(np.array(knots, dtype=np.float64)))])
    return LatencyModel(
        launch_s=launch,
        linear_points=[(float(tokens), float(time)) for tokens, time in zip(knots, times, strict=True)],
        decode_context_s=decode_context,
        decode_s=decode,
        prefill_pair_s=prefill_pair,
        chunk_s=chunk,
        row_s=row,
        head_s=head,
        residual_quantiles={q: float(np.quantile(ratios, q)) for q in QUANTILES},
    )
