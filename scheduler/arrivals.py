"""How fast each contract's requests have been arriving, and how long their outputs are: both learnt online."""

from __future__ import annotations

import bisect
import math
from array import array
from collections import deque

import numpy as np

from superinfer.scheduler.columns import FloatArray

KEPT_ARRIVALS = 256
"""Arrivals before the window that are kept at most, unless more lie in it."""


class ArrivalRate:
    """Arrivals per second over a sliding window.

    Until the window has filled once, the rate is taken over the time seen so far, at least `warm_s`, so that the first
    two requests of a service do not look like a flood.
    """

    def __init__(self, window_s: float = 20.0, warm_s: float = 2.0) -> None:
        self.window_s = window_s
        self.warm_s = warm_s
        self._arrivals = array("d")
        self._begin = 0
        self._first_s: float | None = None

    def add(self, now: float) -> None:
        """One arrival."""
        if self._first_s is None:
            self._first_s = now
        self._arrivals.append(now)

    def per_second(self, now: float) -> float:
        """Arrivals per second in the window that ends now."""
        if self._first_s is None:
            return 0.0
        self._forget(now)
        span = min(max(now - self._first_s, self.warm_s), self.window_s)
        return (len(self._arrivals) - self._begin) / span

    @property
    def first_s(self) -> float:
        """When the first one was; NaN before."""
        return math.nan if self._first_s is None else self._first_s

    @property
    def oldest_s(self) -> float:
        """When the oldest of those in the window was; infinite without any."""
        return self._arrivals[self._begin] if self._begin < len(self._arrivals) else math.inf

    @property
    def count(self) -> int:
        """How many are in the window that was last looked at, those that have come since included."""
        return len(self._arrivals) - self._begin

    def recent(self, now: float) -> FloatArray:
        """When those in the window that ends now were, in order; a copy."""
        self._forget(now)
        return np.array(self._arrivals[self._begin :], np.float64)

    def _forget(self, now: float) -> None:
        arrivals, begin, end = self._arrivals, self._begin, len(self._arrivals)
        while begin < end and arrivals[begin] <= now - self.window_s:
            begin += 1
        self._begin = begin
        if begin > KEPT_ARRIVALS and 2 * begin > end:
            del arrivals[:begin]
            self._begin = 0


class RecentQuantile:
    """A quantile over the last `size` values; None before the first."""

    def __init__(self, size: int = 200) -> None:
        self.size = size
        self._order: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, value: float) -> None:
        """One more value; the oldest leaves when the window is full."""
        if len(self._order) == self.size:
            oldest = self._order.popleft()
            del self._sorted[bisect.bisect_left(self._sorted, oldest)]
        self._order.append(value)
        bisect.insort(self._sorted, value)

    def quantile(self, q: float) -> float | None:
        """The value below which a share q of the recent ones lies."""
        if not self._sorted:
            return None
        return self._sorted[min(int(q * len(self._sorted)), len(self._sorted) - 1)]
