"""How a step gives way: its memory traffic is spread over the time of the plan, so that others find the rest of the bus
free, and its core is left to others.

A rate kept only on the average of whole steps would let a hog run at full speed for tens of milliseconds and rest for
as long: whoever shares the memory with it would have fast and slow steps. Sleeping after each layer keeps bursts below
a millisecond.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from superinfer.executor.idle_class import IdleClass
from superinfer.scheduler.steps import StepPlan


class Pace:
    """To be entered for a step; sleeps for the plan's `pause_s` then. To be told after each part of it what share of
    its traffic that was; sleeps until that is due. For any other plan it does nothing.
    """

    def __init__(
        self,
        plan: StepPlan,
        idle_class: IdleClass,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._plan = plan
        self._idle_class = idle_class
        self._clock = clock
        self._sleep = sleep
        self._started_s = 0.0
        self._share = 0.0

    def __enter__(self) -> Callable[[float], None] | None:
        """What is to be told, if anything is."""
        plan = self._plan
        if plan.leaves_core:
            self._idle_class.enter()
        if plan.paced_s <= 0.0 and plan.pause_s <= 0.0:
            return None
        self._started_s = self._clock() + plan.pause_s
        if plan.pause_s > 0.0:
            self._sleep(plan.pause_s)
        return self._moved

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._idle_class.leave()

    def _moved(self, share: float) -> None:
        """A part of the step is done that made up `share` of its traffic."""
        self._share += share
        ahead_s = self._started_s + self._plan.paced_s * self._share - self._clock()
        if ahead_s > 0.0:
            self._sleep(ahead_s)
