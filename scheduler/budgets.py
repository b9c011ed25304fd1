"""Percentiles as budgets (SPEC S9): p99 means that 1 % may miss, and each contract has an account of what it did miss.

An objective is one bound at one percentile, or the availability. A request that was not answered (refused, failed)
misses every objective; one that its client cancelled counts in none. What is *burned* is misses ÷ allowed misses over
a sliding window: 0 is untouched, 1 spent, more is overspent. While a window holds too few requests for a single miss
to be allowed, one is.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from superinfer.contracts.contract import SLOContract

SLICES = 60
"""Parts of the window: what is older leaves a slice at a time."""


class BudgetState(msgspec.Struct, frozen=True, kw_only=True):
    """One objective over the window; `allowed` is the share of `requests` that may miss it."""

    objective: str
    allowed: float
    requests: int
    missed: int
    burned: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What an answered request took, in seconds; `tpot_s` None where there was one token."""

    latency_s: float
    ttft_s: float | None
    tpot_s: float | None


@dataclass(frozen=True, slots=True)
class _Objective:
    name: str
    allowed: float
    milestone: str = ""
    bound_s: float = math.inf

    def is_missed(self, answer: Answer | None) -> bool:
        if answer is None:
            return True
        match self.milestone:
            case "latency":
                return answer.latency_s > self.bound_s
            case "ttft":
                return answer.ttft_s is None or answer.ttft_s > self.bound_s
            case "tpot":
                return answer.tpot_s is not None and answer.tpot_s > self.bound_s
        return False


@dataclass(slots=True)
class _Slice:
    number: int
    requests: int = 0
    missed: list[int] = field(default_factory=list)


class ContractBudget:
    """The account of one contract. Times are of any one monotonic clock."""

    def __init__(self, contract: SLOContract, window_s: float) -> None:
        self._contract = contract
        self._objectives = _objectives(contract)
        self._slice_s = window_s / SLICES
        self._slices: deque[_Slice] = deque()
        self._requests = 0
        self._missed = [0] * len(self._objectives)

    def has_same_terms(self, contract: SLOContract) -> bool:
        """Whether another version of the contract is held to the same objectives."""
        return contract is self._contract or self._objectives == _objectives(contract)

    def add(self, answer: Answer | None, now: float) -> None:
        """One more request; None for one that was not answered."""
        if not self._objectives:
            return
        self._forget(now)
        number = int(now / self._slice_s)
        if not self._slices or self._slices[-1].number < number:
            self._slices.append(_Slice(number, missed=[0] * len(self._objectives)))
        current = self._slices[-1]
        current.requests += 1
        self._requests += 1
        for index, objective in enumerate(self._objectives):
            if objective.is_missed(answer):
                current.missed[index] += 1
                self._missed[index] += 1

    def states(self, now: float) -> list[BudgetState]:
        """Every objective."""
        self._forget(now)
        return [
            BudgetState(
                objective=objective.name,
                allowed=objective.allowed,
                requests=self._requests,
                missed=missed,
                burned=self._burned(objective, missed),
            )
            for objective, missed in zip(self._objectives, self._missed, strict=True)
        ]

    def _burned(self, objective: _Objective, missed: int) -> float:
        return missed / max(self._requests * objective.allowed, 1.0)

    def _forget(self, now: float) -> None:
        oldest = int(now / self._slice_s) - SLICES
        while self._slices and self._slices[0].number <= oldest:
            gone = self._slices.popleft()
            self._requests -= gone.requests
            self._missed = [total - part for total, part in zip(self._missed, gone.missed, strict=True)]


class BudgetBook:
    """The accounts of all contracts, by contract id."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._accounts: dict[str, ContractBudget] = {}

    def add(self, contract_id: str, contract: SLOContract, answer: Answer | None, now: float) -> None:
        """One request of a contract has ended; None where it was not answered. New terms begin a new account."""
        account = self._accounts.get(contract_id)
        if account is None or not account.has_same_terms(contract):
            account = self._accounts[contract_id] = ContractBudget(contract, self._window_s)
        account.add(answer, now)

    def forget(self, contract_id: str) -> None:
        """Keep no account of a contract any more."""
        self._accounts.pop(contract_id, None)

    def states(self, contract_id: str, now: float) -> list[BudgetState]:
        """Every objective of a contract; empty before its first request has ended."""
        account = self._accounts.get(contract_id)
        return [] if account is None else account.states(now)


def _objectives(contract: SLOContract) -> Sequence[_Objective]:
    found = []
    for milestone in ("latency", "ttft", "tpot"):
        for bound in getattr(contract, milestone):
            name = f"{milestone}_p{100 * bound.percentile:.6g}".replace(".", "")
            found.append(_Objective(name, round(1.0 - bound.percentile, 9), milestone, bound.bound_ms / 1e3))
    if contract.availability is not None:
        found.append(_Objective("availability", round(1.0 - contract.availability, 9)))
    return found
