"""How fast each contract's requests have been arriving, and how long their outputs are: both learnt online."""

from __future__ import annotations

import bisect
from collections import deque


class ArrivalRate:
    """Arrivals per second over a sliding window.

    Until the window has filled once, the rate is taken over the time seen so far, at least `warm_s`, so that the first
    two requests of a service do not look like a flood.
    """

    def __init__(self, window_s: float = 20.0, warm_s: float = 2.0) -> None:
        self.window_s = window_s
        self.warm_s = warm_s
        self._arrivals: deque[float] = deque()
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
        while self._arrivals and self._arrivals[0] <= now - self.window_s:
            self._arrivals.popleft()
        span = min(max(now - self._first_s, self.warm_s), self.window_s)
        return len(self._arrivals) / span


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
