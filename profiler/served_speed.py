"""How fast a device is in service, by steps that it served; what a sweep measured is not quite it.

A serving device shares its memory, caches and clocks with the engine, with its clients and with whoever else is there,
and that is another thing at another hour. The profile's constants stay as they are; steps of real runs say how many
times as long each of two parts takes, what reads memory and what computes, and how times spread around that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from superinfer.profiler.drift import LONGEST_RESIDUAL, StepNoise, step_noise
from superinfer.profiler.latency_model import LatencyModel, StepShape

Array = NDArray[np.float64]

FEWEST_SERVED_STEPS = 100
ROUNDS = 12
"""Of Gauss and Newton's method; the levels are near 1, and settle in three or four."""
APART_S = 1e6
"""Between two runs, whose clocks need not be one: a speed that lasts seconds is forgotten meanwhile."""


@dataclass(frozen=True, slots=True)
class ServedStep:
    """A step of a real run: what it held, when it began by the run's clock, how long it took."""

    shape: StepShape
    at_s: float
    took_s: float


class ServedSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """Of so many steps: factors on what a model says for memory and for arithmetic, and the noise around that."""

    steps: int
    memory: float
    arithmetic: float
    noise: StepNoise


def served_speed(model: LatencyModel, runs: Sequence[Sequence[ServedStep]]) -> ServedSpeed:
    """The speed of a device by the steps of each run on it; ValueError where they are too few to say.

    The levels are the least squares of the logarithms of step times (Gauss–Newton), interrupted steps counted as
    shorter than they were; then both are scaled so that all steps together take as long as they did.
    """
    steps = [step for run in runs for step in run if step.shape.tokens and step.took_s > 0.0]
    if len(steps) < FEWEST_SERVED_STEPS:
        raise ValueError(f"{len(steps)} steps say too little of a device's speed; {FEWEST_SERVED_STEPS} are needed")
    parts_s = np.array([model.parts_s(step.shape) for step in steps], dtype=np.float64)
    took_s = np.array([step.took_s for step in steps], dtype=np.float64)
    levels = np.ones(2)
    for _ in range(ROUNDS):
        usual_s = parts_s @ levels
        surprise = np.clip(np.log(took_s / usual_s), -LONGEST_RESIDUAL, LONGEST_RESIDUAL)
        shares = parts_s * levels / usual_s[:, None]
        levels = levels * np.exp(np.linalg.lstsq(shares, surprise)[0])
    noise = step_noise(np.log(took_s / (parts_s @ levels)), _times_s(runs))
    usual_s = parts_s @ levels * float(np.exp(0.5 * noise.sigma**2))  # the mean of a step's own noise, of median 1
    memory, arithmetic = levels * (took_s.sum() / usual_s.sum())
    return ServedSpeed(steps=len(steps), memory=float(memory), arithmetic=float(arithmetic), noise=noise)


def _times_s(runs: Sequence[Sequence[ServedStep]]) -> Array:
    times_s = []
    for number, run in enumerate(runs):
        begun = [step.at_s for step in run if step.shape.tokens and step.took_s > 0.0]
        times_s += [number * APART_S + at_s - begun[0] for at_s in begun]
    return np.array(times_s, dtype=np.float64)
