"""What became of requests, by contract: counts, error budgets, and how long answers are."""

from __future__ import annotations

from collections.abc import Mapping

from superinfer.contracts.contract import SLOContract
from superinfer.scheduler.arrivals import RecentQuantile
from superinfer.scheduler.budgets import Answer, BudgetBook
from superinfer.scheduler.request import Request
from superinfer.scheduler.sequence import SequenceState
from superinfer.scheduler.stats import ContractCounts
from superinfer.scheduler.steps import FinishReason

OUTPUT_LENGTH_QUANTILE = 0.9


class Accounts:
    """Every request that ends, is refused or falls back is booked here once."""

    def __init__(self, budget_window_s: float) -> None:
        self.budgets = BudgetBook(budget_window_s)
        self._counts: dict[str, ContractCounts] = {}
        self._asked: dict[str, tuple[str, SLOContract]] = {}
        self._output_lengths: dict[str, RecentQuantile] = {}

    @property
    def counts(self) -> Mapping[str, ContractCounts]:
        """What has been counted of each contract."""
        return self._counts

    def expected_outputs(self, request: Request) -> int:
        """Output tokens to expect of a request, by the answers of its contract that ended by themselves."""
        most = request.sampling.max_tokens
        if request.sampling.ignore_eos:
            return most
        past = self._output_lengths.get(request.contract_id)
        quantile = past.quantile(OUTPUT_LENGTH_QUANTILE) if past else None
        return most if quantile is None else max(min(int(quantile), most), 1)

    def fell_back(self, request_id: str, asked_id: str, contract: SLOContract) -> None:
        """A request is served under another contract than the one that it asked for."""
        self._asked[request_id] = asked_id, contract
        self._of(asked_id).fell_back += 1

    def refused(self, contract_id: str, contract: SLOContract, now: float) -> None:
        """Load turned a request away."""
        self._of(contract_id).refused += 1
        self.budgets.add(contract_id, contract, None, now)

    def ended(self, sequence: SequenceState, now: float, reason: FinishReason, met: bool | None) -> None:
        """A request has ended; `met` is None where it did not complete or nothing was promised."""
        request = sequence.request
        contract_id, asked = request.contract_id, self._asked.pop(request.request_id, None)
        counts = self._of(contract_id)
        counts.finished += 1
        counts.met += bool(met)
        if reason in ("stop", "length") and not request.sampling.ignore_eos:
            self._output_lengths.setdefault(contract_id, RecentQuantile()).add(sequence.committed)
        if reason == "abort":
            return
        answer = None if reason == "error" else _answer(sequence, now)
        self.budgets.add(contract_id, sequence.contract, answer, now)
        if asked is not None:
            self.budgets.add(*asked, answer, now)

    def forget(self, contract_id: str) -> None:
        """No request of this contract will come."""
        self._counts.pop(contract_id, None)
        self._output_lengths.pop(contract_id, None)
        self.budgets.forget(contract_id)

    def _of(self, contract_id: str) -> ContractCounts:
        return self._counts.setdefault(contract_id, ContractCounts())


def _answer(sequence: SequenceState, now: float) -> Answer:
    first_s, gaps = sequence.first_token_s, sequence.committed - 1
    return Answer(
        latency_s=now - sequence.arrival_s,
        ttft_s=None if first_s is None else first_s - sequence.arrival_s,
        tpot_s=None if first_s is None or gaps < 1 else (now - first_s) / gaps,
    )
