"""Spreads a step's memory traffic over the time that the plan gives it, so that others find the rest of the bus free.

A rate kept only on the average of whole steps would let a hog run at full speed for tens of milliseconds and rest for
as long: whoever shares the memory with it would have fast and slow steps. Sleeping after each layer keeps bursts below
a millisecond.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Pace:
    """To be told after each part of a step what share of the step's traffic it was; sleeps until that is due, and at
    first for `pause_s`.
    """

    def __init__(
        self,
        duration_s: float,
        pause_s: float = 0.0,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._duration_s = duration_s
        self._clock = clock
        self._sleep = sleep
        self._started_s = clock() + pause_s
        self._share = 0.0
        if pause_s > 0.0:
            sleep(pause_s)

    def moved(self, share: float) -> None:
        """A part of the step is done that made up `share` of its traffic."""
        self._share += share
        ahead_s = self._started_s + self._duration_s * self._share - self._clock()
        if ahead_s > 0.0:
            self._sleep(ahead_s)
