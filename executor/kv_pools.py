"""The files behind KV memory that outlives workers: made by the engine, inherited by whoever is to map them."""

from __future__ import annotations

import contextlib
import os

POOLS_PER_SEGMENT = 2


def make_pools(domains: int) -> list[int]:
    """File descriptors of empty pools for so many domains, two each: device pool, host pool."""
    return [
        os.memfd_create(f"superinfer-kv-{pool}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        for pool in range(POOLS_PER_SEGMENT * domains)
    ]


def close_pools(pools: list[int]) -> None:
    """Let go of them; their memory is freed when the workers have ended too."""
    for pool in pools:
        with contextlib.suppress(OSError):
            os.close(pool)
