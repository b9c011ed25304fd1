"""The waiting requests of one contract in order of a key: the first few sorted, a heap of those behind."""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Iterator
from operator import itemgetter

import numpy as np

from superinfer.scheduler.columns import IntArray
from superinfer.scheduler.sequence import SequenceState

NO_ROWS = np.empty(0, np.int64)
Entry = tuple[float, int, SequenceState]


class WaitingLine:
    """The front is as long as the most that have been asked for. Who leaves from behind it stays in the heap until it
    surfaces, then is dropped, even where the request has come back under another key meanwhile.
    """

    __slots__ = ("_front", "_heap", "_members", "_rows")

    def __init__(self) -> None:
        self._front: list[Entry] = []
        self._heap: list[Entry] = []
        self._members: dict[int, Entry] = {}
        self._rows: IntArray | None = None

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[SequenceState]:
        """Every sequence, in no particular order."""
        return (sequence for _, _, sequence in self._members.values())

    def entries(self) -> list[Entry]:
        """(key, id, sequence) of all, in order."""
        return sorted(self._members.values(), key=itemgetter(0, 1))

    def push(self, key: float, sequence: SequenceState) -> None:
        """Add a sequence; it is not in the line yet."""
        entry = (key, sequence.sequence_id, sequence)
        front = self._front
        self._members[sequence.sequence_id] = entry
        if front and entry[:2] < front[-1][:2]:
            bisect.insort(front, entry)
            entry = front.pop()
            self._rows = None
        heapq.heappush(self._heap, entry)

    def remove(self, sequence: SequenceState) -> bool:
        """Take a sequence out, wherever it is; False where it is not in the line."""
        entry = self._members.pop(sequence.sequence_id, None)
        if entry is None:
            return False
        front = self._front
        if front and entry[:2] <= front[-1][:2]:
            del front[bisect.bisect_left(front, entry)]
            self._rows = None
        return True

    def head(self) -> SequenceState | None:
        """The first sequence, or None."""
        entries = self._first(1)
        return entries[0][2] if entries else None

    def first_key(self) -> float:
        """The key of the first sequence; infinite without any."""
        front = self._front
        if not front and not self._first(1):
            return math.inf
        return front[0][0]

    def pop_until(self, key: float) -> Iterator[SequenceState]:
        """Take out, one after the other, those whose key is at most `key`."""
        while (entries := self._first(1)) and entries[0][0] <= key:
            sequence = entries[0][2]
            self.remove(sequence)
            yield sequence

    def first(self, count: int) -> list[SequenceState]:
        """The first `count`, in order: O(log n) for each that was not among them when last asked for."""
        return [sequence for _, _, sequence in self._first(count)]

    def first_rows(self, count: int) -> IntArray:
        """The rows of `first`; not to be written to."""
        rows, members = self._rows, len(self._members)
        if rows is None or len(rows) != (count if count < members else members):
            rows = self._rows = np.array([sequence.row for _, _, sequence in self._first(count)], np.int64)
        return rows

    def _first(self, count: int) -> list[Entry]:
        front, heap, members = self._front, self._heap, self._members
        while len(front) < count and len(front) < len(members):
            entry = heapq.heappop(heap)
            if members.get(entry[1]) is entry:
                front.append(entry)
                self._rows = None
        return front if len(front) <= count else front[:count]
