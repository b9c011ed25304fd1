"""Waiting requests: one heap per contract, on a key that never changes while a request waits.

Within a contract a static key is exact (see `superinfer.scheduler.decay`); between contracts the policy compares
the heads, so that a choice costs O(number of contracts), however many requests wait.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from superinfer.scheduler.sequence import SequenceState, Status

Key = Callable[[SequenceState], float]


class WaitingQueues:
    """Per-contract heaps. A removed request stays in its heap until it surfaces, then is dropped."""

    def __init__(self, key: Key) -> None:
        self._key = key
        self._heaps: dict[str, list[tuple[float, int, SequenceState]]] = {}
        self._members: dict[str, set[int]] = {}
        self.count = 0

    def push(self, sequence: SequenceState) -> None:
        """Add a waiting sequence under its contract."""
        contract_id = sequence.request.contract_id
        heap = self._heaps.setdefault(contract_id, [])
        heapq.heappush(heap, (self._key(sequence), sequence.sequence_id, sequence))
        self._members.setdefault(contract_id, set()).add(sequence.sequence_id)
        self.count += 1

    def remove(self, sequence: SequenceState) -> None:
        """Take a sequence out, wherever in its heap it is; unknown ones are ignored."""
        members = self._members.get(sequence.request.contract_id)
        if members and sequence.sequence_id in members:
            members.remove(sequence.sequence_id)
            self.count -= 1

    def head(self, contract_id: str) -> SequenceState | None:
        """The first sequence of a contract, or None."""
        heap = self._heaps.get(contract_id)
        members = self._members.get(contract_id, set())
        while heap:
            _, sequence_id, sequence = heap[0]
            if sequence_id in members and sequence.status is Status.WAITING:
                return sequence
            heapq.heappop(heap)
        return None

    def heads(self) -> Iterator[SequenceState]:
        """The first sequence of each contract that has one."""
        for contract_id in self._heaps:
            if (head := self.head(contract_id)) is not None:
                yield head

    def length(self, contract_id: str) -> int:
        """How many wait under one contract."""
        return len(self._members.get(contract_id, ()))

    def waiting(self, contract_id: str) -> Iterator[SequenceState]:
        """Every waiting sequence of a contract, in no particular order."""
        members = self._members.get(contract_id, set())
        for _, sequence_id, sequence in self._heaps.get(contract_id, ()):
            if sequence_id in members and sequence.status is Status.WAITING:
                yield sequence

    def first(self, contract_id: str, count: int) -> list[SequenceState]:
        """The first `count` waiting sequences of a contract, in order: O(count log n)."""
        heap = self._heaps.get(contract_id)
        found: list[tuple[float, int, SequenceState]] = []
        while heap and len(found) < count and self.head(contract_id) is not None:
            found.append(heapq.heappop(heap))
        for entry in found:
            heapq.heappush(heap, entry)  # type: ignore[arg-type]
        return [sequence for _, _, sequence in found]

    def contract_ids(self) -> list[str]:
        """Contracts that have somebody waiting."""
        return [contract_id for contract_id, members in self._members.items() if members]
