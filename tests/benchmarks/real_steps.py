"""How slow the device of a real run was at each moment, from the run's journal."""

from __future__ import annotations

import bisect
from pathlib import Path

from superinfer.executor.journal import Observed
from superinfer.executor.simulation.hindsight import JournalWalk
from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.domain import InFlightStep

STEPS_OF_A_MOMENT = 5
BEST_EFFORT = "best-effort"
"""The contract of what warms the engine up."""


class RealSteps(JournalWalk):
    """What a run's steps took over what the profile says of them, for steps with prefill and for those without."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.first_s = next(each.arrival_s for _, each in self.coming if each.contract_id != BEST_EFFORT)
        self._steps: dict[bool, list[tuple[float, float, float]]] = {True: [], False: []}
        self.run()

    def on_step(self, entry: Observed, step: InFlightStep, model: LatencyModel) -> None:
        """As JournalWalk.on_step."""
        said_s, result = model.uncorrected_step_s(step.shape), entry.result
        own = self._steps[step.shape.chunks > 0]
        own.append((result.started_s - self.first_s, result.duration_s, said_s))

    def ratio_at(self, has_prefill: bool, at_s: float) -> float:
        """What steps took at that time over what the profile says of them; `at_s` after the first arrival."""
        steps = self._steps[has_prefill]
        middle = bisect.bisect(steps, (at_s,))
        near = steps[max(middle - STEPS_OF_A_MOMENT // 2, 0) : middle + STEPS_OF_A_MOMENT // 2 + 1]
        return sum(took_s for _, took_s, _ in near) / sum(said_s for _, _, said_s in near) if near else 1.0
