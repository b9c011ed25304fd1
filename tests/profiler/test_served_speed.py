"""How fast a device is in service: levels and noise told from steps that were served."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superinfer.profiler.latency_model import LatencyModel, StepShape
from superinfer.profiler.served_speed import ServedStep, served_speed

MODEL = LatencyModel(
    launch_s=0.01,
    linear_points=[(1, 0.002), (8, 0.01), (64, 0.06), (256, 0.25)],
    decode_context_s=2e-6,
    decode_s=2e-4,
    prefill_pair_s=1.5e-6,
    chunk_s=1e-3,
    row_s=1e-4,
    head_s=2e-3,
)


def served(model: LatencyModel, count: int, *, sigma: float = 0.0, seed: int = 0, chunks: int = 4) -> list[ServedStep]:
    """Steps of a device of that model; one in `chunks` holds a prompt's chunk."""
    generator = random.Random(seed)
    now, steps = 1000.0, []
    for number in range(count):
        shape = StepShape()
        for _ in range(generator.randint(1, 6)):
            shape.add_decode(generator.randint(20, 400))
        if chunks and number % chunks == 0:
            shape.add_prefill(0, generator.randint(16, 200), samples=True)
        took_s = model.uncorrected_step_s(shape) * math.exp(generator.gauss(0.0, sigma))
        steps.append(ServedStep(shape, now, took_s))
        now += took_s
    return steps


def test_both_levels_are_told_apart_and_noise_is_what_is_left() -> None:
    runs = [served(MODEL.at_levels(1.3, 0.9), 600, sigma=0.05, seed=seed) for seed in (1, 2)]
    speed = served_speed(MODEL, runs)
    assert speed.steps == 1200
    assert speed.memory == pytest.approx(1.3, rel=0.02)
    assert speed.arithmetic == pytest.approx(0.9, rel=0.02)
    assert speed.noise.sigma == pytest.approx(0.05, rel=0.2)


def test_a_stall_moves_no_level_and_interruptions_count_as_far_as_noise_goes() -> None:
    steps = served(MODEL, 800)
    stalled = [*steps[:400], replace(steps[400], took_s=20.0), *steps[401:]]
    speed = served_speed(MODEL, [stalled])
    assert (speed.memory, speed.arithmetic) == (pytest.approx(1.0, abs=0.01), pytest.approx(1.0, abs=0.01))
    late = [replace(step, took_s=step.took_s * (1.4 if i % 20 == 7 else 1.0)) for i, step in enumerate(steps)]
    speed = served_speed(MODEL, [late])
    again = MODEL.at_levels(speed.memory, speed.arithmetic)
    as_said_s = sum(again.uncorrected_step_s(step.shape) for step in late) * math.exp(0.5 * speed.noise.sigma**2)
    assert as_said_s == pytest.approx(sum(step.took_s for step in late), rel=0.005)


def test_a_single_prompt_says_little_of_arithmetic() -> None:
    steps = served(MODEL, 300, sigma=0.1, chunks=0)
    shape = StepShape()
    shape.add_prefill(0, 3, samples=True)
    steps.append(ServedStep(shape, 2000.0, 1.2 * MODEL.uncorrected_step_s(shape)))
    speed = served_speed(MODEL, [steps])
    assert speed.arithmetic == pytest.approx(speed.memory, rel=0.1)


def test_steps_without_prompts_still_say_how_fast_decodes_are() -> None:
    steps = served(MODEL.at_levels(1.2, 1.2), 300, chunks=0)
    speed = served_speed(MODEL, [steps])
    again = MODEL.at_levels(speed.memory, speed.arithmetic)
    for step in steps:
        assert again.uncorrected_step_s(step.shape) == pytest.approx(step.took_s, rel=1e-3)


def test_too_few_steps_say_nothing() -> None:
    with pytest.raises(ValueError, match="60 steps say too little of a device's speed; 100 are needed"):
        served_speed(MODEL, [served(MODEL, 60)])


@given(
    tokens=st.integers(1, 400),
    decodes=st.integers(0, 40),
    context=st.integers(0, 4000),
    memory=st.floats(0.3, 3.0),
    arithmetic=st.floats(0.3, 3.0),
)
def test_a_model_at_levels_takes_so_many_times_its_two_parts(
    tokens: int, decodes: int, context: int, memory: float, arithmetic: float
) -> None:
    shape = StepShape(tokens, decodes, context, 12.5 * tokens, decodes + 1, 1)
    reads_s, computes_s = MODEL.parts_s(shape)
    took_s = MODEL.at_levels(memory, arithmetic).uncorrected_step_s(shape)
    assert took_s == pytest.approx(memory * reads_s + arithmetic * computes_s)
