"""The fit against a known latency model: predictions recovered, noise and outliers borne, errors honest."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superinfer.profiler.fit import choose_knots, fit_latency_model
from superinfer.profiler.latency_model import LatencyModel, StepShape
from superinfer.profiler.sweep_points import ALL_POINTS

TRUE_MODEL = LatencyModel(
    launch_s=0.03,
    linear_points=[(1, 0.02), (8, 0.04), (64, 0.2), (256, 0.75)],
    decode_context_s=4e-6,
    decode_s=3e-4,
    prefill_pair_s=3e-7,
    chunk_s=1e-3,
    row_s=1e-3,
    head_s=5e-3,
)
SHAPES = [point.shape for point in ALL_POINTS]


def measured_steps(
    model: LatencyModel, *, noise: float = 0.0, outliers: float = 0.0, repeats: int = 3, seed: int = 0
) -> list[tuple[StepShape, float]]:
    """`repeats` times of every sweep point; a share of `outliers` takes four times as long."""
    generator = random.Random(seed)
    steps = []
    for shape in SHAPES * repeats:
        seconds = model.uncorrected_step_s(shape) * (1 + noise * generator.gauss(0, 1))
        steps.append((shape, seconds * (4 if generator.random() < outliers else 1)))
    return steps


def unseen_shapes() -> list[StepShape]:
    generator = random.Random(1)
    shapes = []
    for _ in range(200):
        shape = StepShape()
        for _ in range(generator.choice([0, 1, 3, 10, 30])):
            shape.add_decode(generator.randint(20, 1000))
        if shape.tokens == 0 or generator.random() < 0.5:
            shape.add_prefill(generator.randint(0, 700), generator.randint(2, 200), samples=generator.random() < 0.5)
        shapes.append(shape)
    return shapes


def errors_on(fitted: LatencyModel, true: LatencyModel, shapes: list[StepShape]) -> np.ndarray:
    return np.array([abs(fitted.uncorrected_step_s(s) / true.uncorrected_step_s(s) - 1) for s in shapes])


def test_without_noise_unseen_steps_are_predicted_within_two_percent() -> None:
    fitted = fit_latency_model(measured_steps(TRUE_MODEL)).model
    errors = errors_on(fitted, TRUE_MODEL, unseen_shapes())
    assert np.median(errors) < 0.005
    assert errors.max() < 0.02


@pytest.mark.parametrize("seed", range(4))
def test_noise_and_outliers_do_not_carry_over_into_the_predictions(seed: int) -> None:
    steps = measured_steps(TRUE_MODEL, noise=0.05, outliers=0.05, seed=seed)
    errors = errors_on(fit_latency_model(steps).model, TRUE_MODEL, unseen_shapes())
    assert np.median(errors) < 0.03
    assert np.quantile(errors, 0.9) < 0.06


def test_wide_scatter_does_not_pull_predictions_to_one_side() -> None:
    steps = measured_steps(TRUE_MODEL, noise=0.25, repeats=6)
    steps = [(shape, max(seconds, 1e-3)) for shape, seconds in steps]
    fitted = fit_latency_model(steps).model
    ratios = [fitted.uncorrected_step_s(s) / TRUE_MODEL.uncorrected_step_s(s) for s in SHAPES]
    assert 0.93 < np.median(ratios) < 1.07


def test_reported_errors_and_quantiles_are_those_of_the_noise() -> None:
    result = fit_latency_model(measured_steps(TRUE_MODEL, noise=0.05, repeats=6))
    # |gaussian| of 5 %: median 3.4 %, 90th percentile 8.2 %; one-sided 90th percentile 6.4 %.
    assert 0.025 < result.errors.median_relative_error < 0.05
    assert 0.07 < result.errors.p90_relative_error < 0.12
    assert result.model.residual_quantiles[0.5] == pytest.approx(1.0, abs=0.02)
    assert 1.04 < result.model.residual_quantiles[0.9] < 1.1
    assert result.errors.steps == 6 * len(SHAPES)
    assert result.errors.shapes == len(SHAPES)


def test_the_p90_prediction_covers_about_nine_of_ten_new_steps() -> None:
    result = fit_latency_model(measured_steps(TRUE_MODEL, noise=0.05, repeats=4))
    upper = result.model.residual_quantiles[0.9]
    fresh = measured_steps(TRUE_MODEL, noise=0.05, repeats=20, seed=99)
    covered = [seconds <= upper * result.model.uncorrected_step_s(shape) for shape, seconds in fresh]
    assert 0.85 < np.mean(covered) < 0.95


@settings(max_examples=25, deadline=None)
@given(
    launch_s=st.floats(1e-4, 0.2),
    per_token_s=st.floats(1e-5, 1e-2),
    decode_context_s=st.floats(0.0, 2e-5),
    prefill_pair_s=st.floats(0.0, 5e-6),
    row_s=st.floats(0.0, 5e-3),
    seed=st.integers(0, 1000),
)
def test_any_physical_model_is_recovered_and_the_fitted_one_is_monotone(
    launch_s: float,
    per_token_s: float,
    decode_context_s: float,
    prefill_pair_s: float,
    row_s: float,
    seed: int,
) -> None:
    true = LatencyModel(
        launch_s=launch_s,
        linear_points=[(1, per_token_s), (256, 256 * per_token_s)],
        decode_context_s=decode_context_s,
        decode_s=0.0,
        prefill_pair_s=prefill_pair_s,
        chunk_s=0.0,
        row_s=row_s,
    )
    fitted = fit_latency_model(measured_steps(true, noise=0.03, seed=seed)).model
    assert np.median(errors_on(fitted, true, SHAPES)) < 0.03
    assert all(low[0] < high[0] and low[1] <= high[1] for low, high in pairwise(fitted.linear_points))
    constants = (fitted.launch_s, fitted.decode_context_s, fitted.decode_s, fitted.prefill_pair_s)
    assert min(*constants, fitted.chunk_s, fitted.row_s, fitted.head_s) >= 0.0


@given(st.lists(st.integers(1, 500), min_size=1, max_size=60))
def test_knots_are_measured_counts_with_both_ends_and_never_crowded(counts: list[int]) -> None:
    knots = choose_knots(counts)
    assert set(knots) <= set(counts)
    assert knots[0] == min(counts)
    assert knots[-1] == max(counts)
    assert all(low < high for low, high in pairwise(knots))
    assert all(high >= 1.35 * low for low, high in pairwise(knots[:-1]))


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_time_is_refused(bad: float) -> None:
    steps = measured_steps(TRUE_MODEL)
    steps[3] = (steps[3][0], bad)
    with pytest.raises(ValueError, match="finite and above zero"):
        fit_latency_model(steps)


def test_steps_that_cannot_tell_a_curve_are_refused() -> None:
    one = StepShape(tokens=1, decodes=1, decode_context=10, rows=1)
    with pytest.raises(ValueError, match="two different token counts"):
        fit_latency_model([(one, 0.1)] * 5)
    two = StepShape(tokens=2, decodes=2, decode_context=20, rows=2)
    with pytest.raises(ValueError, match="three different shapes"):
        fit_latency_model([(one, 0.1), (two, 0.12)])
