"""How fast a device has been: what its steps say of the seconds to come, beyond the next step.

Two things are told apart. Usual levels, one for what reads memory and one for what computes, for a device under load
may differ from the sweep in either: learnt slowly, by recursive least squares on the logarithm of step times, so that
a step teaches each level by its share of the step. And what the last steps were above or below them: other tenants
and clocks, which are gone within a second (`superinfer.profiler.drift`); a prediction forgets it as it looks ahead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from superinfer.profiler.latency_model import LatencyModel, StepShape

LEVEL_WANDERS = 0.002
"""How far a level moves from step to step (log, one standard deviation)."""
LEVEL_UNKNOWN = 0.14
"""How far a level may be from what the profile says, before any step was seen."""
STEP_VARIES = 0.15
"""How far steps are from the levels, the moment's speed included."""
LONGEST_SURPRISE = 0.3
"""A step that is further off (log) was interrupted, and counts as if it were so far off."""
MOMENT_GAIN = 0.35
MOMENT_LASTS_S = 0.2


@dataclass(slots=True)
class DeviceSpeed:
    """Levels and moment of one device, logarithms of factors on the fitted constants; 0 until steps were observed.

    The levels' uncertainty is their covariance: of the memory's, of both, of the arithmetic's.
    """

    memory: float = 0.0
    arithmetic: float = 0.0
    moment: float = 0.0
    memory_variance: float = LEVEL_UNKNOWN**2
    covariance: float = 0.0
    arithmetic_variance: float = LEVEL_UNKNOWN**2

    def step_s(self, model: LatencyModel, shape: StepShape, ahead_s: float = 0.0) -> float:
        """Predicted time of a step that begins `ahead_s` after the last one that was observed."""
        memory_s, arithmetic_s = self._parts_s(model, shape)
        return (memory_s + arithmetic_s) * math.exp(self.moment * math.exp(-max(ahead_s, 0.0) / MOMENT_LASTS_S))

    def observe(self, model: LatencyModel, shape: StepShape, actual_s: float) -> None:
        """Learn from a step."""
        memory_s, arithmetic_s = self._parts_s(model, shape)
        usual_s = memory_s + arithmetic_s
        if usual_s <= 0.0 or actual_s <= 0.0:
            return
        of_memory, of_arithmetic = memory_s / usual_s, arithmetic_s / usual_s
        self.memory_variance += LEVEL_WANDERS**2
        self.arithmetic_variance += LEVEL_WANDERS**2
        surprise = min(max(math.log(actual_s / usual_s), -LONGEST_SURPRISE), LONGEST_SURPRISE)
        to_memory = self.memory_variance * of_memory + self.covariance * of_arithmetic
        to_arithmetic = self.covariance * of_memory + self.arithmetic_variance * of_arithmetic
        variance = of_memory * to_memory + of_arithmetic * to_arithmetic + STEP_VARIES**2
        self.memory += to_memory / variance * surprise
        self.arithmetic += to_arithmetic / variance * surprise
        self.memory_variance -= to_memory * to_memory / variance
        self.covariance -= to_memory * to_arithmetic / variance
        self.arithmetic_variance -= to_arithmetic * to_arithmetic / variance
        self.moment += MOMENT_GAIN * (surprise - self.moment)

    def _parts_s(self, model: LatencyModel, shape: StepShape) -> tuple[float, float]:
        memory_s, arithmetic_s = model.parts_s(shape)
        return memory_s * math.exp(self.memory), arithmetic_s * math.exp(self.arithmetic)
