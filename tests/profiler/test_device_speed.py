"""What a device's steps say of the seconds to come: levels of its own for memory and arithmetic, moments forgotten."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superinfer.profiler.device_speed import MOMENT_LASTS_S, DeviceSpeed
from superinfer.profiler.latency_model import LatencyModel, StepShape

MODEL = LatencyModel(
    launch_s=0.02,
    linear_points=[(1, 0.0), (8, 0.01), (256, 0.8)],
    decode_context_s=6e-6,
    decode_s=1e-4,
    prefill_pair_s=1e-6,
    chunk_s=1e-3,
    row_s=5e-4,
    head_s=3e-3,
)
DECODES = StepShape(tokens=3, decodes=3, decode_context=400, rows=3)
PREFILL = StepShape(tokens=160, prefill_pairs=13_000, rows=1, chunks=1)


@given(
    tokens=st.integers(1, 500),
    decodes=st.integers(0, 64),
    context=st.integers(0, 50_000),
    pairs=st.floats(0, 1e6),
    rows=st.integers(0, 64),
    chunks=st.integers(0, 5),
)
def test_both_parts_are_the_whole_step(
    tokens: int, decodes: int, context: int, pairs: float, rows: int, chunks: int
) -> None:
    shape = StepShape(tokens, decodes, context, pairs, rows, chunks)
    memory_s, arithmetic_s = MODEL.parts_s(shape)
    assert memory_s > 0.0
    assert arithmetic_s >= 0.0
    assert memory_s + arithmetic_s == pytest.approx(MODEL.uncorrected_step_s(shape))


def test_an_empty_step_takes_no_time_and_teaches_nothing() -> None:
    speed = DeviceSpeed()
    speed.observe(MODEL, StepShape(), 1.0)
    assert speed == DeviceSpeed()
    assert speed.step_s(MODEL, StepShape()) == 0.0


def test_before_any_step_the_profile_speaks() -> None:
    assert DeviceSpeed().step_s(MODEL, PREFILL) == pytest.approx(MODEL.uncorrected_step_s(PREFILL))


def test_decodes_cheaper_and_prefill_dearer_than_profiled_are_learnt_side_by_side() -> None:
    speed, generator = DeviceSpeed(), random.Random(1)
    for number in range(100):
        for shape, factor in ((DECODES, 0.9), (PREFILL, 1.1)) if number % 3 == 0 else ((DECODES, 0.9),):
            noise = math.exp(generator.gauss(0.0, 0.05))
            speed.observe(MODEL, shape, factor * noise * MODEL.uncorrected_step_s(shape))
    later_s = 10 * MOMENT_LASTS_S
    assert speed.step_s(MODEL, DECODES, later_s) == pytest.approx(0.9 * MODEL.uncorrected_step_s(DECODES), rel=0.03)
    assert speed.step_s(MODEL, PREFILL, later_s) == pytest.approx(1.1 * MODEL.uncorrected_step_s(PREFILL), rel=0.03)


def test_a_slow_moment_is_expected_to_last_and_then_to_be_over() -> None:
    speed = DeviceSpeed()
    usual_s = MODEL.uncorrected_step_s(DECODES)
    for number in range(206):
        speed.observe(MODEL, DECODES, usual_s * (1.3 if number >= 200 else 1.0))
    next_s, soon_s, later_s = (speed.step_s(MODEL, DECODES, ahead_s) for ahead_s in (0.0, MOMENT_LASTS_S, 10.0))
    assert next_s > 1.2 * usual_s
    assert next_s > soon_s > later_s
    assert later_s == pytest.approx(usual_s, rel=0.05)


def test_an_interrupted_step_hardly_moves_the_levels() -> None:
    speed = DeviceSpeed()
    usual_s = MODEL.uncorrected_step_s(DECODES)
    for _ in range(100):
        speed.observe(MODEL, DECODES, usual_s)
    speed.observe(MODEL, DECODES, 50 * usual_s)
    assert speed.step_s(MODEL, DECODES, 10.0) == pytest.approx(usual_s, rel=0.02)


@given(st.lists(st.tuples(st.booleans(), st.floats(0.01, 100.0)), max_size=200))
def test_whatever_steps_take_predictions_stay_within_what_may_be(steps: list[tuple[bool, float]]) -> None:
    speed = DeviceSpeed()
    for is_prefill, factor in steps:
        shape = PREFILL if is_prefill else DECODES
        speed.observe(MODEL, shape, factor * MODEL.uncorrected_step_s(shape))
    assert speed.memory_variance > 0.0
    assert speed.arithmetic_variance > 0.0
    assert speed.covariance**2 <= speed.memory_variance * speed.arithmetic_variance * (1 + 1e-9)
    for shape in (DECODES, PREFILL):
        assert math.isfinite(speed.step_s(MODEL, shape))
        assert speed.step_s(MODEL, shape) > 0.0
