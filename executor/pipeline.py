"""When to plan a domain's next step: late enough to know the newest arrivals, early enough not to idle."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from superinfer.executor.idle_class import PATIENCE
from superinfer.scheduler.steps import StepPlan, StepResult

DEPTH = 2
"""Steps in flight at most: the one that runs and the one that waits in the worker's queue."""

LEAD_S = 0.003
LEAD_PLANS = 1.5
"""The plan is due this long, and so many times as long as planning takes, before the running step's expected end."""
PLANNING_S = 0.0006
"""What planning a step and sending it off usually take, for whoever runs the engine's clock ahead."""
STEP_GAP_S = 0.0002
"""Between two steps of a worker, the later one being in its queue already; late plans included, on average."""
USUAL_LEAD_S = LEAD_S + LEAD_PLANS * PLANNING_S

HANG_S = 30.0
HANG_FACTOR = 20.0
_GAIN = 0.2


@dataclass(slots=True)
class _Flight:
    step_id: int
    predicted_s: float
    leaves_core: bool
    patience: float = PATIENCE
    is_recalled: bool = False


class StepPipeline:
    """The steps in flight in one domain. All times are on the monotonic clock.

    `ratio` is the smoothed measured / predicted step time, `planning_s` the smoothed time that a plan takes. A step
    hangs when it takes `hang_s` and HANG_FACTOR times the predicted time.
    """

    def __init__(self, hang_s: float = HANG_S) -> None:
        self._hang_s = hang_s
        self._flights: deque[_Flight] = deque()
        self._started_s = 0.0
        self.ratio = 1.0
        self.planning_s = 0.0

    def __len__(self) -> int:
        return len(self._flights)

    def sent(self, plan: StepPlan, now: float, planning_s: float) -> None:
        """A plan that took `planning_s` to make went to the worker."""
        if not self._flights:
            self._started_s = now
        self._flights.append(_Flight(plan.step_id, plan.predicted_s, plan.leaves_core))
        self.planning_s += _GAIN * (planning_s - self.planning_s)

    def received(self, result: StepResult) -> None:
        """The oldest step's result came; ValueError where it is another's."""
        if not self._flights or self._flights[0].step_id != result.step_id:
            raise ValueError(f"result of step {result.step_id} is not the one awaited")
        flight = self._flights.popleft()
        self._started_s = result.finished_s
        if flight.predicted_s > 0.0 and not flight.is_recalled:
            ratio = min(max(result.duration_s / flight.predicted_s, 0.25), 4.0)
            self.ratio += _GAIN * (ratio - self.ratio)

    def clear(self) -> None:
        """Forget the steps in flight: their worker is gone."""
        self._flights.clear()

    @property
    def expected_end_s(self) -> float:
        """When the running step should end; 0 where none runs."""
        return self._started_s + self.ratio * self._flights[0].predicted_s if self._flights else 0.0

    @property
    def plan_at_s(self) -> float | None:
        """The time from which the next step may be planned; None while as many are in flight as may be."""
        if len(self._flights) >= DEPTH:
            return None
        return max(self.expected_end_s - LEAD_S - LEAD_PLANS * self.planning_s, 0.0)

    @property
    def patience_ends_s(self) -> float | None:
        """When the running step has left its core for too long; None where it does not, or was recalled."""
        if not self._flights or not self._flights[0].leaves_core or self._flights[0].is_recalled:
            return None
        return self._started_s + self._flights[0].patience * self._flights[0].predicted_s

    def lost_patience(self, *, is_recalled: bool) -> None:
        """The running step was recalled; one that had not left its core yet is looked at again after as long."""
        self._flights[0].is_recalled = is_recalled
        self._flights[0].patience *= 2.0

    @property
    def hung_at_s(self) -> float | None:
        """When the running step has taken so long that its worker must be hung; None where none runs."""
        if not self._flights:
            return None
        return self._started_s + max(self._hang_s, HANG_FACTOR * self._flights[0].predicted_s)
