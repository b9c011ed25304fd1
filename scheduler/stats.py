"""A snapshot of the scheduler for people and metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from superinfer.scheduler.budgets import BudgetBook, BudgetState
from superinfer.scheduler.domain import DomainState
from superinfer.scheduler.sequence import SequenceState, Status


class ContractCounts(msgspec.Struct):
    """Requests of one contract: ended since the start (and of them, those that met it), running and waiting now.

    `refused` were turned away by load, `fell_back` asked for this contract and were served under its alternative;
    neither is among `finished`. `budgets` are its objectives over the last while.
    """

    finished: int = 0
    met: int = 0
    running: int = 0
    waiting: int = 0
    refused: int = 0
    fell_back: int = 0
    budgets: list[BudgetState] = []


class SchedulerStats(msgspec.Struct, kw_only=True):
    """Counts over all domains that are up; `reserved_gb_per_s` is what contracts hold of a domain, by both ids.

    `rotations` and `recomputations` are the times that a sequence gave way to another, by what became of its KV.
    """

    time_s: float
    waiting: int
    running: int
    rotated: int
    steps: int
    output_tokens: int
    kv_blocks_total: int
    kv_blocks_free: int
    contracts: dict[str, ContractCounts]
    domains_up: list[str]
    reserved_gb_per_s: dict[str, dict[str, float]] = {}
    rotations: int = 0
    recomputations: int = 0


def snapshot(
    now: float,
    domains_up: Sequence[DomainState],
    live: Iterable[SequenceState],
    counted: Mapping[str, ContractCounts],
    *,
    budgets: BudgetBook,
    waiting: int,
    steps: int,
    output_tokens: int,
    reserved_gb_per_s: dict[str, dict[str, float]],
) -> SchedulerStats:
    """The state of a scheduler at a time: what it has counted by contract, and what is live."""
    contracts = {
        contract_id: ContractCounts(
            finished=counts.finished,
            met=counts.met,
            refused=counts.refused,
            fell_back=counts.fell_back,
            budgets=budgets.states(contract_id, now),
        )
        for contract_id, counts in counted.items()
    }
    for sequence in live:
        counts = contracts.setdefault(sequence.request.contract_id, ContractCounts())
        if sequence.status is Status.WAITING:
            counts.waiting += 1
        else:
            counts.running += 1
    return SchedulerStats(
        time_s=now,
        waiting=waiting,
        running=sum(len(domain.running) for domain in domains_up),
        rotated=sum(len(domain.rotated) for domain in domains_up),
        steps=steps,
        output_tokens=output_tokens,
        kv_blocks_total=sum(domain.device_blocks.total for domain in domains_up),
        kv_blocks_free=sum(domain.device_blocks.free for domain in domains_up),
        contracts=contracts,
        domains_up=[domain.domain_id for domain in domains_up],
        reserved_gb_per_s=reserved_gb_per_s,
        rotations=sum(domain.rotations for domain in domains_up),
        recomputations=sum(domain.recomputations for domain in domains_up),
    )
