"""The waiting requests of one contract in order of a key: a heap whose first few are found once."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from superinfer.scheduler.columns import IntArray
from superinfer.scheduler.sequence import SequenceState

NO_ROWS = np.empty(0, np.int64)
_Entry = tuple[float, int, SequenceState]


@dataclass(frozen=True, slots=True)
class _Front:
    """The first sequences as they were when last asked for, and the place of the last of them."""

    count: int
    sequences: list[SequenceState]
    rows: IntArray
    last: tuple[float, int]

    @property
    def is_full(self) -> bool:
        """Whether others may wait behind."""
        return len(self.sequences) == self.count


class WaitingLine:
    """A removed request's entry stays in the heap until it surfaces, then is dropped, even where the request has come
    back under another key meanwhile.
    """

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._members: dict[int, _Entry] = {}
        self._front: _Front | None = None

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[SequenceState]:
        """Every sequence, in no particular order."""
        return (sequence for _, _, sequence in self._members.values())

    def push(self, key: float, sequence: SequenceState) -> None:
        """Add a sequence; it is not in the line yet."""
        entry = (key, sequence.sequence_id, sequence)
        heapq.heappush(self._heap, entry)
        self._members[sequence.sequence_id] = entry
        front = self._front
        if front is not None and not (front.is_full and entry[:2] > front.last):
            self._front = None

    def remove(self, sequence: SequenceState) -> bool:
        """Take a sequence out, wherever it is; False where it is not in the line."""
        if self._members.pop(sequence.sequence_id, None) is None:
            return False
        if self._front is not None and sequence in self._front.sequences:
            self._front = None
        return True

    def head(self) -> SequenceState | None:
        """The first sequence, or None."""
        entry = self._first_entry()
        return None if entry is None else entry[2]

    def pop_until(self, key: float) -> Iterator[SequenceState]:
        """Take out, one after the other, those whose key is at most `key`."""
        while (entry := self._first_entry()) is not None and entry[0] <= key:
            self.remove(entry[2])
            yield entry[2]

    def first(self, count: int) -> list[SequenceState]:
        """The first `count`, in order: O(count log n), or O(count) if they are the same as when asked before."""
        front = self._find_front(count)
        return [] if front is None else list(front.sequences)

    def first_rows(self, count: int) -> IntArray:
        """The rows of `first`; not to be written to."""
        front = self._find_front(count)
        return NO_ROWS if front is None else front.rows

    def _first_entry(self) -> _Entry | None:
        while self._heap:
            entry = self._heap[0]
            if self._members.get(entry[1]) is entry:
                return entry
            heapq.heappop(self._heap)
        return None

    def _find_front(self, count: int) -> _Front | None:
        if self._front is not None and self._front.count == count:
            return self._front
        found: list[_Entry] = []
        while len(found) < count and self._first_entry() is not None:
            found.append(heapq.heappop(self._heap))
        for entry in found:
            heapq.heappush(self._heap, entry)
        if not found:
            return None
        sequences = [sequence for _, _, sequence in found]
        rows = np.array([sequence.row for sequence in sequences], np.int64)
        self._front = _Front(count, sequences, rows, found[-1][:2])
        return self._front
