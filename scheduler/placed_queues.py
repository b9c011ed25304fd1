"""Waiting requests where domains are unequal: within a contract, one line for each set of kinds that hold its requests.

Every domain pulls, as among equals, but sees only lines that are for it:

- a request that only faster kinds hold stays out of sight of the slower ones, but for those that would just hold it
  while no domain of the faster kinds has room for it;
- one that slower kinds hold as well is for whoever has room first, as among equals: to leave it to the slower ones
  crowds them with the tightest of what they just hold, at the cost of the rest;
- one that no kind holds any more has lapsed, and the slowest that has room takes it;
- where no domain of the kinds that hold a request is up, the others that its contract permits take it.

A line's key is the time at which the slowest kind of its set no longer holds the request. Then the request goes on to
the line of those that still do: each moves at most twice for each kind, however long it waits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

import numpy as np

from superinfer.scheduler.columns import IntArray
from superinfer.scheduler.domain import DomainState
from superinfer.scheduler.domain_kind import DomainKinds
from superinfer.scheduler.headroom import Headroom
from superinfer.scheduler.queues import Key, WaitingQueues
from superinfer.scheduler.sequence import SequenceState
from superinfer.scheduler.waiting_line import NO_ROWS, WaitingLine

LAPSED = 0
"""The set of kinds that hold what has lapsed: none."""


class LineKey(NamedTuple):
    """A line of a contract: the kinds that may serve its requests at all, those that hold them, their second choice."""

    permitted: int
    holding: int
    second: int = 0


class PlacedQueues(WaitingQueues):
    """See the module's text. Without `by_headroom` a domain sees whatever its kind may serve at all: plain pull."""

    def __init__(
        self,
        key: Key,
        block_size: int,
        *,
        kinds: DomainKinds,
        headroom: Headroom,
        domains: Mapping[str, DomainState],
        by_headroom: bool,
    ) -> None:
        super().__init__(key, block_size)
        self._kinds, self._headroom, self._domains = kinds, headroom, domains
        self._by_headroom = by_headroom
        self._lines_of: dict[str, dict[LineKey, WaitingLine]] = {}
        self.placed: dict[int, int] = {}
        """The kinds that held each sequence when it last waited, by its id, for those of which there were any."""
        self._viewer: str | None = None
        self._seen: dict[tuple[str, LineKey], bool] = {}
        self._left: dict[str, set[tuple[str, LineKey]]] = {}
        self._busy_until_s: dict[str, float] = {}

    def look_from(self, domain_id: str | None) -> None:
        """From now on this domain looks at the lines; None for everybody."""
        self._viewer = domain_id
        self._seen.clear()

    def note_plan(self, domain_id: str, now: float, step_s: float) -> None:
        """The domain that looks has planned a step, after those in flight: what it still sees it had no room for."""
        begin_s = max(now, self._busy_until_s[domain_id]) if self._domains[domain_id].in_flight else now
        self._busy_until_s[domain_id] = begin_s + step_s
        self._left[domain_id] = {
            (contract_id, key)
            for contract_id, lines in self._lines_of.items()
            for key, line in lines.items()
            if len(line) and self._sees(contract_id, key)
        }

    def push(self, sequence: SequenceState) -> None:
        """Add a waiting sequence under its contract and the kinds that hold it."""
        self._put(sequence, sequence.stage_since_s)
        contract_id = sequence.request.contract_id
        self._blocks_wanted[contract_id] = self._blocks_wanted.get(contract_id, 0) + self._blocks(sequence)
        self.count += 1

    def remove(self, sequence: SequenceState) -> None:
        """Take a sequence out, wherever it is; unknown ones are ignored."""
        contract_id = sequence.request.contract_id
        if any(line.remove(sequence) for line in self._lines_of.get(contract_id, {}).values()):
            self._blocks_wanted[contract_id] -= self._blocks(sequence)
            self.count -= 1

    def lapse(self, contract_id: str, now: float) -> None:
        """Those whose set of kinds has become smaller go on to its line."""
        lines = self._lines_of.get(contract_id, {})
        for key, line in list(lines.items()):
            if key.holding != LAPSED and line.first_key() <= now:
                for sequence in list(line.pop_until(now)):
                    self._put(sequence, now, has_waited=True)

    def head(self, contract_id: str) -> SequenceState | None:
        """The first sequence that is seen, one that has not lapsed if there is any; or None."""
        lines = self._seen_lines(contract_id) or self._seen_lines(contract_id, lapsed=True)
        return min(lines, key=WaitingLine.first_key).head() if lines else None

    def heads(self) -> Iterator[SequenceState]:
        """The first sequence of each contract that has one."""
        for contract_id in self._lines_of:
            if (head := self.head(contract_id)) is not None:
                yield head

    def length(self, contract_id: str) -> int:
        """How many wait under one contract, seen or not."""
        return sum(map(len, self._lines_of.get(contract_id, {}).values()))

    def waiting(self, contract_id: str) -> Iterator[SequenceState]:
        """Every waiting sequence of a contract that is seen, in no particular order."""
        return chain(*self._seen_lines(contract_id), *self._seen_lines(contract_id, lapsed=True))

    def first(self, contract_id: str, count: int) -> list[SequenceState]:
        """The first `count` of each line that is seen, but for those that have lapsed."""
        return [sequence for line in self._seen_lines(contract_id) for sequence in line.first(count)]

    def first_rows(self, contract_id: str, count: int) -> IntArray:
        """The rows of `first`; not to be written to."""
        return _first_rows(self._seen_lines(contract_id), count)

    def first_lapsed(self, contract_id: str, count: int) -> list[SequenceState]:
        """The first `count` of each line of those that have lapsed and are seen, by arrival."""
        return [sequence for line in self._seen_lines(contract_id, lapsed=True) for sequence in line.first(count)]

    def first_lapsed_rows(self, contract_id: str, count: int) -> IntArray:
        """The rows of `first_lapsed`; not to be written to."""
        return _first_rows(self._seen_lines(contract_id, lapsed=True), count)

    def front_rows(self, contract_ids: Iterable[str], now: float, count: int, lapsed: int) -> list[IntArray]:
        """`lapse` each of these contracts, then `first_rows` of each and `first_lapsed_rows`, but for empty ones."""
        parts: list[IntArray] = []
        for contract_id in contract_ids:
            self.lapse(contract_id, now)
            parts += [line.first_rows(count) for line in self._seen_lines(contract_id)]
            parts += [line.first_rows(lapsed) for line in self._seen_lines(contract_id, lapsed=True)]
        return parts

    def contract_ids(self) -> list[str]:
        """Contracts that have somebody waiting who is seen."""
        return [each for each in self._lines_of if self._seen_lines(each) or self._seen_lines(each, lapsed=True)]

    def _put(self, sequence: SequenceState, now: float, *, has_waited: bool = False) -> None:
        contract_id, permitted = sequence.request.contract_id, self._headroom.with_room_for(sequence)
        if self._by_headroom and not sequence.contract.is_best_effort:
            holding, second, key = self._headroom.place(
                sequence, permitted, now, lambda number: self._free_s(contract_id, number)
            )
        else:
            holding, second, key = LAPSED if has_waited else permitted, 0, self._key(sequence)
        if holding == LAPSED:
            self.placed.pop(sequence.sequence_id, None)
        else:
            self.placed[sequence.sequence_id] = holding
        lines, line_key = self._lines_of.setdefault(contract_id, {}), LineKey(permitted, holding, second)
        line = lines.get(line_key)
        if line is None:
            line = lines[line_key] = WaitingLine()
        line.push(sequence.arrival_s if holding == LAPSED else key, sequence)

    def _seen_lines(self, contract_id: str, *, lapsed: bool = False) -> list[WaitingLine]:
        """Lines with somebody in them that the viewer may take from: of those that have lapsed, or of the others."""
        if contract_id in self.hidden:
            return []
        return [
            line
            for key, line in self._lines_of.get(contract_id, {}).items()
            if (key.holding == LAPSED) is lapsed and len(line) and self._sees(contract_id, key)
        ]

    def _sees(self, contract_id: str, key: LineKey) -> bool:
        """`_may_take`, decided once for as long as the viewer looks."""
        if self._viewer is None:
            return True
        seen = self._seen.get((contract_id, key))
        if seen is None:
            seen = self._seen[contract_id, key] = self._may_take(self._viewer, contract_id, key)
        return seen

    def _may_take(self, viewer: str, contract_id: str, key: LineKey) -> bool:
        own, holding = self._kinds.number_of(viewer), key.holding or key.permitted
        if not key.permitted >> own & 1:
            return False
        if not self._by_headroom:
            return bool(holding >> own & 1)
        serving = self._kinds.serving(contract_id)
        if not holding >> own & 1:
            is_asked = key.second >> own & 1
            return not any(
                holding >> number & 1 and any(not is_asked or self._has_room(each, contract_id, key) for each in up)
                for number, up in enumerate(serving)
            )
        return key.holding != LAPSED or not any(
            holding >> number & 1 and any(self._has_room(each, contract_id, key) for each in serving[number])
            for number in range(own + 1, len(serving))
        )

    def _free_s(self, contract_id: str, number: int) -> float:
        """When the first domain of a kind that may start requests of a contract has ended its step; past if one has."""
        up = self._kinds.serving(contract_id)[number]
        return min((self._busy_until_s.get(each, -math.inf) for each in up), default=-math.inf)

    def _has_room(self, domain_id: str, contract_id: str, key: LineKey) -> bool:
        """Whether a domain would take more of a line: it idles, or had taken all of it when it last planned."""
        domain = self._domains[domain_id]
        idles = not (domain.running or domain.rotated)
        return idles or (contract_id, key) not in self._left.get(domain_id, ())


def _first_rows(lines: list[WaitingLine], count: int) -> IntArray:
    """The rows of the first `count` of each line."""
    if len(lines) < 2:
        return lines[0].first_rows(count) if lines else NO_ROWS
    return np.concatenate([line.first_rows(count) for line in lines])
