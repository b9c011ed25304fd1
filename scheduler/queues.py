"""Waiting requests: one line per contract, on a key that never changes while a request waits.

Within a contract a static key is exact (see `superinfer.scheduler.decay`); between contracts the policy compares
the heads, so that a choice costs O(number of contracts), however many requests wait.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from superinfer.scheduler.columns import IntArray
from superinfer.scheduler.sequence import SequenceState
from superinfer.scheduler.waiting_line import NO_ROWS, Entry, WaitingLine

Key = Callable[[SequenceState], float]


class WaitingQueues:
    """Two lines a contract: those that wait, by key, and those that have *lapsed*, by arrival.

    A policy whose key is the time at which a request is lost lets them lapse by it, so that however many of them there
    are, the first of the others are those that can still be saved. For any other policy nobody lapses.

    While a domain plans, `hidden` are the contracts that it may not serve: whoever asks for them finds nobody.
    """

    def __init__(self, key: Key, block_size: int = 16) -> None:
        self._key = key
        self._block_size = block_size
        self._blocks_wanted: dict[str, int] = {}
        self._lines: dict[str, WaitingLine] = {}
        self._lapsed: dict[str, WaitingLine] = {}
        self.hidden: frozenset[str] = frozenset()
        self.count = 0

    def push(self, sequence: SequenceState) -> None:
        """Add a waiting sequence under its contract."""
        self.push_by(self._key(sequence), sequence)

    def push_by(self, key: float, sequence: SequenceState) -> None:
        """Add a waiting sequence that has its key already."""
        contract_id = sequence.request.contract_id
        if contract_id not in self._lines:
            self._lines[contract_id], self._lapsed[contract_id] = WaitingLine(), WaitingLine()
            self._blocks_wanted[contract_id] = 0
        self._lines[contract_id].push(key, sequence)
        self._blocks_wanted[contract_id] += self._blocks(sequence)
        self.count += 1

    def remove(self, sequence: SequenceState) -> None:
        """Take a sequence out, wherever it is; unknown ones are ignored."""
        contract_id = sequence.request.contract_id
        if contract_id in self._lines and (
            self._lines[contract_id].remove(sequence) or self._lapsed[contract_id].remove(sequence)
        ):
            self._blocks_wanted[contract_id] -= self._blocks(sequence)
            self.count -= 1

    def lapse(self, contract_id: str, now: float) -> None:
        """Those of the contract whose key is at most `now` lapse, for as long as they wait."""
        line = self._lines.get(contract_id)
        if line is not None and line.first_key() <= now:
            for sequence in line.pop_until(now):
                self._lapsed[contract_id].push(sequence.arrival_s, sequence)

    def lapses_s(self, contract_id: str) -> float:
        """The key of the first that will lapse; infinite without any."""
        line = self._lines.get(contract_id)
        return math.inf if line is None else line.first_key()

    def entries(self, contract_id: str) -> tuple[list[Entry], list[Entry]]:
        """(key, id, sequence) of all that wait under a contract, hidden or not, in order: those that have not lapsed,
        those that have.
        """
        if contract_id not in self._lines:
            return [], []
        return self._lines[contract_id].entries(), self._lapsed[contract_id].entries()

    def head(self, contract_id: str) -> SequenceState | None:
        """The first sequence of a contract, one that has not lapsed if there is any; or None."""
        if contract_id in self.hidden or contract_id not in self._lines:
            return None
        return self._lines[contract_id].head() or self._lapsed[contract_id].head()

    def heads(self) -> Iterator[SequenceState]:
        """The first sequence of each contract that has one."""
        for contract_id in self._lines:
            if (head := self.head(contract_id)) is not None:
                yield head

    def length(self, contract_id: str) -> int:
        """How many wait under one contract, hidden or not."""
        return len(self._lines[contract_id]) + len(self._lapsed[contract_id]) if contract_id in self._lines else 0

    def waiting(self, contract_id: str) -> Iterator[SequenceState]:
        """Every waiting sequence of a contract, in no particular order."""
        if contract_id in self.hidden or contract_id not in self._lines:
            return iter(())
        return chain(self._lines[contract_id], self._lapsed[contract_id])

    def first(self, contract_id: str, count: int) -> list[SequenceState]:
        """The first `count` waiting sequences of a contract that have not lapsed, in order."""
        line = self._visible(self._lines, contract_id)
        return [] if line is None else line.first(count)

    def first_rows(self, contract_id: str, count: int) -> IntArray:
        """The rows of `first`; not to be written to."""
        line = self._visible(self._lines, contract_id)
        return NO_ROWS if line is None else line.first_rows(count)

    def first_lapsed(self, contract_id: str, count: int) -> list[SequenceState]:
        """The first `count` of a contract that have lapsed, by arrival."""
        line = self._visible(self._lapsed, contract_id)
        return [] if line is None else line.first(count)

    def first_lapsed_rows(self, contract_id: str, count: int) -> IntArray:
        """The rows of `first_lapsed`; not to be written to."""
        line = self._visible(self._lapsed, contract_id)
        return NO_ROWS if line is None else line.first_rows(count)

    def front_rows(self, contract_ids: Iterable[str], now: float, count: int, lapsed: int) -> list[IntArray]:
        """`lapse` each of these contracts, then `first_rows` of each and `first_lapsed_rows`, but for empty ones; the
        same arrays as long as nobody comes to or leaves the front. Not to be written to.
        """
        parts: list[IntArray] = []
        for contract_id in contract_ids:
            line = self._lines.get(contract_id)
            if line is None:
                continue
            if line.first_key() <= now:
                self.lapse(contract_id, now)
            if contract_id in self.hidden:
                continue
            if line:
                parts.append(line.first_rows(count))
            if line := self._lapsed[contract_id]:
                parts.append(line.first_rows(lapsed))
        return parts

    def contract_ids(self) -> list[str]:
        """Contracts that have somebody waiting."""
        return [each for each in self._lines if each not in self.hidden and self.length(each)]

    def blocks_wanted(self) -> int:
        """Device blocks with which all that wait could enter."""
        return sum(blocks for each, blocks in self._blocks_wanted.items() if each not in self.hidden)

    def _blocks(self, sequence: SequenceState) -> int:
        return -(-(sequence.prefill_target + 1) // self._block_size)

    def _visible(self, lines: dict[str, WaitingLine], contract_id: str) -> WaitingLine | None:
        return None if contract_id in self.hidden else lines.get(contract_id)
