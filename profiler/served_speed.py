"""How fast a device is in service, by steps that it served; what a sweep measured is not quite it.

A serving device shares its memory, caches and clocks with the engine, with its clients and with whoever else is there,
and that is another thing at another hour. The profile's constants stay as they are; steps of real runs say how many
times as long each of two parts takes, what reads memory and what computes, and how times spread around that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from superinfer.profiler.drift import LONGEST_RESIDUAL, StepNoise, step_noise
from superinfer.profiler.latency_model import LatencyModel, StepShape

FEWEST_SERVED_STEPS = 100
ROUNDS = 12
"""Of Gauss and Newton's method; the levels are near 1, and settle in three or four."""
EQUAL_LEVELS = 0.7
"""Weight of the prior that both levels are alike, where a step has 1: it decides where hardly a step computes."""
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

    The levels are the least squares of the logarithms of step times (Gauss–Newton), with a prior that they are alike;
    then both are scaled so that all steps together take as long as they did, interruptions but for LONGEST_RESIDUAL.
    """
    steps = _told(runs)
    if len(steps) < FEWEST_SERVED_STEPS:
        raise ValueError(f"{len(steps)} steps say too little of a device's speed; {FEWEST_SERVED_STEPS} are needed")
    parts_s = np.array([model.parts_s(step.shape) for step in steps], dtype=np.float64)
    took_s = np.array([step.took_s for step in steps], dtype=np.float64)
    levels = np.ones(2)
    for _ in range(ROUNDS):
        usual_s = parts_s @ levels
        surprise = np.clip(np.log(took_s / usual_s), -LONGEST_RESIDUAL, LONGEST_RESIDUAL)
        shares = np.vstack([parts_s * levels / usual_s[:, None], [EQUAL_LEVELS, -EQUAL_LEVELS]])
        apart = EQUAL_LEVELS * (np.log(levels[1]) - np.log(levels[0]))
        levels = levels * np.exp(np.linalg.lstsq(shares, np.append(surprise, apart))[0])
    usual_s = parts_s @ levels
    residuals = np.log(took_s / usual_s)
    noise = step_noise(residuals, np.array([step.at_s for step in steps], dtype=np.float64))
    mean = float(np.exp(0.5 * noise.sigma**2))  # of a step's own noise, of median 1
    lasted_s = usual_s * np.exp(np.clip(residuals, -LONGEST_RESIDUAL, LONGEST_RESIDUAL))
    memory, arithmetic = levels * (lasted_s.sum() / (mean * usual_s.sum()))
    return ServedSpeed(steps=len(steps), memory=float(memory), arithmetic=float(arithmetic), noise=noise)


def _told(runs: Sequence[Sequence[ServedStep]]) -> list[ServedStep]:
    """The steps that say something, on one clock."""
    told = []
    for number, run in enumerate(runs):
        known = [step for step in run if step.shape.tokens and step.took_s > 0.0]
        told += [replace(step, at_s=number * APART_S + step.at_s - known[0].at_s) for step in known]
    return told
