"""A snapshot of the scheduler for people and metrics."""

from __future__ import annotations

import msgspec

from superinfer.scheduler.budgets import BudgetState


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
    """Counts over all domains that are up; `reserved_gb_per_s` is what contracts hold of a domain, by both ids."""

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
