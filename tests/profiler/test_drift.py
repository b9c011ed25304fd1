"""A device whose speed drifts: told apart from each step's own noise, and kept out of the fitted constants."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from superinfer.profiler.drift import log_speed, step_noise
from superinfer.profiler.fit import fit_latency_model
from superinfer.profiler.latency_model import LatencyModel, StepShape
from superinfer.profiler.sweep_points import ALL_POINTS

MODEL = LatencyModel(
    launch_s=0.03,
    linear_points=[(1, 0.0), (8, 0.02), (64, 0.2), (256, 0.75)],
    decode_context_s=4e-6,
    decode_s=3e-4,
    prefill_pair_s=3e-7,
    chunk_s=1e-3,
    row_s=1e-3,
    head_s=4e-3,
)


def drifting(
    count: int, *, sigma: float, drift_sigma: float, lasts_s: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """(log factors, times) of steps every quarter of a second."""
    generator = random.Random(seed)
    kept = math.exp(-0.25 / lasts_s)
    speed, found = generator.gauss(0, drift_sigma), []
    for _ in range(count):
        speed = kept * speed + math.sqrt(1 - kept * kept) * generator.gauss(0, drift_sigma)
        found.append(speed + generator.gauss(0, sigma))
    return np.array(found), 0.25 * np.arange(count)


@pytest.mark.parametrize("seed", range(3))
def test_noise_is_split_into_each_steps_own_and_the_drift(seed: int) -> None:
    noise = step_noise(*drifting(1500, sigma=0.05, drift_sigma=0.1, lasts_s=4.0, seed=seed))
    assert noise.drift is not None
    assert 0.02 < noise.sigma < 0.08
    assert noise.drift.sigma == pytest.approx(0.1, rel=0.3)
    assert 1.0 <= noise.drift.lasts_s <= 16.0


@pytest.mark.parametrize("lasts_s", [0.5, 2.0])
def test_a_short_sweep_tells_how_long_slow_moments_last(lasts_s: float) -> None:
    found = []
    for seed in range(9):
        noise = step_noise(*drifting(280, sigma=0.06, drift_sigma=0.1, lasts_s=lasts_s, seed=seed))
        assert noise.drift is not None
        found.append(noise.drift.lasts_s)
    assert sum(lasts_s / 2 <= each <= 2 * lasts_s for each in found) >= 7


def test_of_a_few_steps_only_the_spread_is_known() -> None:
    noise = step_noise(*drifting(20, sigma=0.06, drift_sigma=0.1, lasts_s=1.0, seed=1))
    assert noise.drift is None
    assert noise.sigma > 0.06


def test_without_drift_nearly_all_noise_is_each_steps_own() -> None:
    noise = step_noise(*drifting(1500, sigma=0.08, drift_sigma=0.0, lasts_s=1.0, seed=1))
    assert noise.sigma == pytest.approx(0.08, rel=0.1)
    assert noise.drift is None or noise.drift.sigma < 0.02


def test_the_shared_speed_is_found_and_a_step_of_its_own_does_not_count_for_itself() -> None:
    slow = np.where(np.arange(200) < 100, 0.0, 0.2)
    times_s = 0.25 * np.arange(200)
    found = log_speed(slow, times_s)
    assert np.mean(found[140:160]) - np.mean(found[40:60]) == pytest.approx(0.2, abs=0.03)
    lone = np.zeros(200)
    lone[50] = 3.0
    assert log_speed(lone, times_s)[50] == 0.0


def test_a_slow_pass_of_the_sweep_does_not_pass_for_expensive_shapes() -> None:
    shapes = [point.shape for point in ALL_POINTS] * 3
    generator = random.Random(2)
    # The first half of each pass is slow: shapes that are visited there look expensive.
    slow = [1.25 if index % len(ALL_POINTS) < 30 else 1.0 for index in range(len(shapes))]
    steps = [
        (shape, MODEL.uncorrected_step_s(shape) * factor * math.exp(generator.gauss(0, 0.02)))
        for shape, factor in zip(shapes, slow, strict=True)
    ]
    times_s = [0.3 * index for index in range(len(shapes))]

    def spread(fitted: LatencyModel) -> float:
        ratios = [fitted.uncorrected_step_s(shape) / MODEL.uncorrected_step_s(shape) for shape in shapes]
        return float(np.std(ratios) / np.mean(ratios))

    assert spread(fit_latency_model(steps, times_s).model) < 0.7 * spread(fit_latency_model(steps).model)


def test_with_times_the_errors_while_serving_are_reported_as_well() -> None:
    factors, times_s = drifting(4 * len(ALL_POINTS), sigma=0.03, drift_sigma=0.12, lasts_s=8.0, seed=4)
    shapes = [point.shape for point in ALL_POINTS] * 4
    steps = [(shape, MODEL.uncorrected_step_s(shape) * math.exp(f)) for shape, f in zip(shapes, factors, strict=True)]
    result = fit_latency_model(steps, list(times_s))
    errors = result.errors
    assert errors.tracked_median_relative_error is not None
    assert errors.tracked_median_relative_error < 0.8 * errors.median_relative_error
    assert fit_latency_model(steps).errors.tracked_median_relative_error is None
    assert result.noise is not None
    assert result.noise.drift is not None


def test_steps_after_a_drift_are_predicted_well_within_a_hundred_and_nine_in_ten_stay_below_the_upper_ratio() -> None:
    generator = random.Random(5)
    model = MODEL.fresh()
    shapes = [point.shape for point in ALL_POINTS]
    covered = []
    for slowdown in (1.0, 1.5, 0.8):
        for step in range(400):
            shape: StepShape = generator.choice(shapes)
            seconds = slowdown * MODEL.uncorrected_step_s(shape) * math.exp(generator.gauss(0, 0.06))
            if step >= 100:
                covered.append(seconds <= model.upper_ratio * model.step_s(shape))
                assert model.correction == pytest.approx(slowdown, rel=0.15)
            model.observe(shape, seconds)
        assert model.correction == pytest.approx(slowdown, rel=0.08)
    assert 0.88 <= np.mean(covered) <= 0.92
    assert model.fresh().correction == 1.0
    assert model.fresh().upper_ratio == MODEL.upper_ratio
