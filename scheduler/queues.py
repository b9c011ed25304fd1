"""Waiting requests: one heap per contract, on a key that never changes while a request waits.

Within a contract a static key is exact (see `superinfer.scheduler.decay`); between contracts the policy compares
the heads, so that a choice costs O(number of contracts), however many requests wait.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from superinfer.scheduler.columns import IntArray
from superinfer.scheduler.sequence import SequenceState

Key = Callable[[SequenceState], float]
NO_ROWS = np.empty(0, np.int64)
_Entry = tuple[float, int, SequenceState]


@dataclass(frozen=True, slots=True)
class _Front:
    """The first sequences of a contract as they were when last asked for, and the place of the last of them."""

    count: int
    sequences: list[SequenceState]
    rows: IntArray
    last: tuple[float, int]

    @property
    def is_full(self) -> bool:
        """Whether others may wait behind."""
        return len(self.sequences) == self.count


class WaitingQueues:
    """Per-contract heaps. A removed request's entry stays in its heap until it surfaces, then is dropped, even where
    the request has come back under another key meanwhile.

    While a domain plans, `hidden` are the contracts that it may not serve: whoever asks for them finds nobody.
    """

    def __init__(self, key: Key) -> None:
        self._key = key
        self._heaps: dict[str, list[_Entry]] = {}
        self._members: dict[str, dict[int, _Entry]] = {}
        self._fronts: dict[str, _Front] = {}
        self.hidden: frozenset[str] = frozenset()
        self.count = 0

    def push(self, sequence: SequenceState) -> None:
        """Add a waiting sequence under its contract."""
        contract_id = sequence.request.contract_id
        heap = self._heaps.setdefault(contract_id, [])
        entry = (self._key(sequence), sequence.sequence_id, sequence)
        heapq.heappush(heap, entry)
        self._members.setdefault(contract_id, {})[sequence.sequence_id] = entry
        self.count += 1
        front = self._fronts.get(contract_id)
        if front is not None and not (front.is_full and entry[:2] > front.last):
            del self._fronts[contract_id]

    def remove(self, sequence: SequenceState) -> None:
        """Take a sequence out, wherever in its heap it is; unknown ones are ignored."""
        contract_id = sequence.request.contract_id
        members = self._members.get(contract_id)
        if members and sequence.sequence_id in members:
            del members[sequence.sequence_id]
            self.count -= 1
            front = self._fronts.get(contract_id)
            if front is not None and sequence in front.sequences:
                del self._fronts[contract_id]

    def head(self, contract_id: str) -> SequenceState | None:
        """The first sequence of a contract, or None."""
        if contract_id in self.hidden:
            return None
        heap = self._heaps.get(contract_id)
        members = self._members.get(contract_id, {})
        while heap:
            entry = heap[0]
            if members.get(entry[1]) is entry:
                return entry[2]
            heapq.heappop(heap)
        return None

    def heads(self) -> Iterator[SequenceState]:
        """The first sequence of each contract that has one."""
        for contract_id in self._heaps:
            if (head := self.head(contract_id)) is not None:
                yield head

    def length(self, contract_id: str) -> int:
        """How many wait under one contract, hidden or not."""
        return len(self._members.get(contract_id, ()))

    def waiting(self, contract_id: str) -> Iterator[SequenceState]:
        """Every waiting sequence of a contract, in no particular order."""
        if contract_id in self.hidden:
            return iter(())
        return (sequence for _, _, sequence in self._members.get(contract_id, {}).values())

    def first(self, contract_id: str, count: int) -> list[SequenceState]:
        """The first `count` waiting sequences of a contract, in order: O(count log n), or O(count) if they are the same
        as when asked before.
        """
        front = self._front(contract_id, count)
        return [] if front is None else list(front.sequences)

    def first_rows(self, contract_id: str, count: int) -> IntArray:
        """The rows of `first`; not to be written to."""
        front = self._front(contract_id, count)
        return NO_ROWS if front is None else front.rows

    def _front(self, contract_id: str, count: int) -> _Front | None:
        if contract_id in self.hidden:
            return None
        front = self._fronts.get(contract_id)
        if front is not None and front.count == count:
            return front
        heap = self._heaps.get(contract_id, [])
        found: list[_Entry] = []
        while heap and len(found) < count and self.head(contract_id) is not None:
            found.append(heapq.heappop(heap))
        for entry in found:
            heapq.heappush(heap, entry)
        if not found:
            return None
        sequences = [sequence for _, _, sequence in found]
        rows = np.array([sequence.row for sequence in sequences], np.int64)
        front = self._fronts[contract_id] = _Front(count, sequences, rows, found[-1][:2])
        return front

    def contract_ids(self) -> list[str]:
        """Contracts that have somebody waiting."""
        return [
            contract_id for contract_id, members in self._members.items() if members and contract_id not in self.hidden
        ]
