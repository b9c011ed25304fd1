"""The requests to come, of which one can look at the next."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator

from superinfer.scheduler.request import Request


class Feed:
    """Requests in the order in which they come from an iterator, which is read no further than somebody looks."""

    def __init__(self, arrivals: Iterator[Request]) -> None:
        self._arrivals = arrivals
        self._ahead: deque[Request] = deque()

    def peek(self) -> Request | None:
        """The next request, which stays the next."""
        if not self._ahead:
            request = next(self._arrivals, None)
            if request is None:
                return None
            self._ahead.append(request)
        return self._ahead[0]

    @property
    def next_s(self) -> float:
        """When the next one arrives; infinite where none is left."""
        request = self.peek()
        return math.inf if request is None else request.arrival_s

    def pop(self) -> Request:
        """The next request, which is there: somebody has looked."""
        return self._ahead.popleft()

    def put_back(self, requests: Iterable[Request]) -> None:
        """These, in order, are the next again."""
        self._ahead.extendleft(reversed(list(requests)))
