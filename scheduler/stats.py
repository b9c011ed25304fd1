"""A snapshot of the scheduler for people and metrics."""

from __future__ import annotations

import msgspec


class ContractCounts(msgspec.Struct):
    """Requests of one contract: ended since the start (and of them, those that met it), running and waiting now."""

    finished: int = 0
    met: int = 0
    running: int = 0
    waiting: int = 0


class SchedulerStats(msgspec.Struct, kw_only=True):
    """Counts over all domains that are up."""

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
