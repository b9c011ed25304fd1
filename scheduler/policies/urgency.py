"""Urgency classes: which contracts are more urgent than which, and how much of the device they have been taking."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate

import numpy as np

from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.arrivals import ArrivalRate
from superinfer.scheduler.columns import FloatArray, IntArray
from superinfer.scheduler.policies.class_shares import UP_TO_DATE, no_rates, settle_shares, write_rates
from superinfer.scheduler.policies.load import ContractLoad
from superinfer.scheduler.sequence import SequenceState
from superinfer.scheduler.slack import allowed_s


class UrgencyClasses:
    """Contracts in classes 0, 1, … by how much time they allow; learnt from the requests that arrive.

    A contract opens a new class when it allows `class_ratio` times as much as the first of the class before. Best
    effort is the last class. `level_column` is the class by the contract's number, which its sequences hold.
    """

    def __init__(self, model: LatencyModel, class_ratio: float) -> None:
        self._model = model
        self._class_ratio = class_ratio
        self._loads: dict[str, ContractLoad] = {}
        self._levels: dict[str, int] = {}
        self._versions: dict[str, int] = {}
        self._count = 0
        self._looked_at_s = math.nan
        self._shares: list[float] = []
        self._initial_slacks_s: list[float] = []
        self._best_effort_level = -1
        self.least_allowed_s = 0.0
        """The time that the most urgent contract allows; 0 where none bounds it."""
        self._numbers: dict[str, int] = {}
        self.level_column: IntArray = np.zeros(0, np.int64)
        self._rates = no_rates(0)
        self._rows: dict[str, int] = {}

    @property
    def count(self) -> int:
        """How many classes there are."""
        return self._count

    def add_arrival(self, sequence: SequenceState, now: float) -> float:
        """Learn from one admitted request; returns its slack when it arrived."""
        contract_id = sequence.request.contract_id
        sequence.contract_number = self._numbers.setdefault(contract_id, len(self._numbers))
        load = self._loads.get(contract_id)
        version = sequence.contract.version
        if load is None or self._versions[contract_id] != version:
            rate = ArrivalRate() if load is None else load.rate
            load = self._loads[contract_id] = ContractLoad(rate, allowed_s=allowed_s(sequence))
            self._versions[contract_id] = version
            self._classify()
        self._looked_at_s = math.nan
        slack = load.add_arrival(sequence, self._model, now)
        self._write_rates(contract_id)
        return slack

    def resume(self, contract_id: str, arrivals_s: list[float], device_s: float, initial_slack_s: float) -> None:
        """Requests of a contract have come that were learnt from elsewhere; this is what its load is now."""
        load = self._loads[contract_id]
        for time_s in arrivals_s:
            load.rate.add(time_s)
        load.device_s, load.initial_slack_s = device_s, initial_slack_s
        self._looked_at_s = math.nan
        self._write_rates(contract_id)

    @property
    def numbers(self) -> Mapping[str, int]:
        """The number of each contract, which its sequences hold."""
        return self._numbers

    def forget(self, contract_id: str) -> None:
        """A contract whose requests come no more: nothing waits for it, and those in flight keep their class."""
        if self._loads.pop(contract_id, None) is not None:
            self._classify()

    @property
    def levels(self) -> Mapping[str, int]:
        """The class of each contract."""
        return self._levels

    def level(self, sequence: SequenceState) -> int:
        """The class of a request."""
        return self._levels[sequence.request.contract_id]

    def contracts(self, level: int) -> list[str]:
        """The contracts of a class."""
        return [contract_id for contract_id, its_level in self._levels.items() if its_level == level]

    def load_share(self, now: float, level: int) -> float:
        """Share of one device's time that requests at least as urgent as this class have been asking for."""
        self._look(now)
        return self._shares[level]

    def is_best_effort(self, level: int) -> bool:
        """Whether the contracts of this class promise nothing."""
        return level == self._best_effort_level

    @property
    def has_best_effort(self) -> bool:
        """Whether there is a class that promises nothing."""
        return self._best_effort_level >= 0

    def initial_slack_s(self, now: float, level: int) -> float:
        """The smallest slack with which requests more urgent than this class have been arriving of late; infinite if
        none have. Those of a contract that nothing could hold arrive lost, and do not count.
        """
        self._look(now)
        return self._initial_slacks_s[level]

    @property
    def loads(self) -> Mapping[str, ContractLoad]:
        """What each contract has been asking for."""
        return self._loads

    def on(self, now: float, request_s: Callable[[str], float]) -> Iterator[tuple[float, float]]:
        """`load_share` and `initial_slack_s` of each class, of one domain among unequal ones, of which a request of a
        contract takes `request_s` seconds on average over all that come; contracts of which it gets none do not count.
        """
        return zip(*self._sums(now, request_s), strict=False)

    def settle(self, levels: FloatArray, now: float, domains_up: int, reserve_alpha: float, idle_share: float) -> None:
        """Fill in what arrivals have been taking of the device, a row for each class (see `settle_shares`)."""
        stale = settle_shares(self._rates, levels, now, domains_up, reserve_alpha, idle_share)
        while stale != UP_TO_DATE:
            contract_id = [*self._loads][stale]
            self._loads[contract_id].rate.per_second(now)
            self._write_rates(contract_id)
            stale = settle_shares(self._rates, levels, now, domains_up, reserve_alpha, idle_share)

    def _write_rates(self, contract_id: str) -> None:
        write_rates(self._rates, self._rows[contract_id], self._loads[contract_id], self._levels[contract_id])

    def _look(self, now: float) -> None:
        """Work out the shares and the initial slacks of this moment, all in one pass over the contracts."""
        if now == self._looked_at_s:
            return
        self._looked_at_s = now
        self._shares, self._initial_slacks_s = self._sums(now, lambda contract_id: self._loads[contract_id].device_s)

    def _sums(self, now: float, request_s: Callable[[str], float]) -> tuple[list[float], list[float]]:
        count = self.count
        shares, slacks_s = [0.0] * count, [math.inf] * (count + 1)
        for contract_id, load in self._loads.items():
            level, per_second, seconds = self._levels[contract_id], load.rate.per_second(now), request_s(contract_id)
            shares[level] += per_second * seconds
            if per_second > 0.0 and seconds > 0.0 and 0.0 < load.initial_slack_s < slacks_s[level + 1]:
                slacks_s[level + 1] = load.initial_slack_s
        return list(accumulate(shares)), list(accumulate(slacks_s, min))

    def _classify(self) -> None:
        self._looked_at_s = math.nan
        self._best_effort_level = -1
        least = min((load.allowed_s for load in self._loads.values()), default=math.inf)
        self.least_allowed_s = least if math.isfinite(least) else 0.0
        level, first = -1, 0.0
        for contract_id, load in sorted(self._loads.items(), key=lambda item: item[1].allowed_s):
            if level < 0 or load.allowed_s > self._class_ratio * first:
                level, first = level + 1, load.allowed_s
            self._levels[contract_id] = level
            if first == math.inf:
                self._best_effort_level = level
        self._count = max(self._levels.values(), default=-1) + 1
        self.level_column = np.array([self._levels[contract_id] for contract_id in self._numbers], np.int64)
        self._rates = no_rates(len(self._loads))
        self._rows = {contract_id: row for row, contract_id in enumerate(self._loads)}
        for contract_id in self._loads:
            self._write_rates(contract_id)
