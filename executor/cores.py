"""Which CPU cores the workers and the engine run on."""

from __future__ import annotations


def assign_cores(domains: int, cores: list[int]) -> tuple[list[list[int]], list[int]]:
    """(cores of each worker, cores of the engine) from the cores this process may use.

    Each worker gets one core, from the last downwards, and shares one only where there are more workers
    than cores: a single-thread worker loses most when another process takes its core in mid-step. The
    engine gets all cores that have no worker; where every core has one it stays free to run on whichever is
    idle, since its work is short, but for those that are spared (`spared_cores`).
    """
    ordered = sorted(cores)
    workers = [[ordered[-1 - i % len(ordered)]] for i in range(domains)]
    taken = {core for worker in workers for core in worker}
    return workers, [core for core in ordered if core not in taken] or ordered
