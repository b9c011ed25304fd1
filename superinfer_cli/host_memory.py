"""Host memory for KV, as the command line has it: for requests that give way, and for what is to outlive a worker."""

from __future__ import annotations

from typing import Literal

from superinfer.cli.serve.sizes import parse_bytes
from superinfer.contracts.errors import UsageError
from superinfer.executor.config import Checkpoint
from superinfer.profiler.store import ModelProfile

FLAG = "--host-kv-memory"


def host_blocks(text: str | None, profile: ModelProfile, block_size: int) -> int:
    """Blocks of `block_size` tokens in so much memory; UsageError where not one fits."""
    if text is None:
        return 0
    block_bytes = block_size * profile.static.memory.kv_bytes_per_token
    blocks = int(parse_bytes(text, FLAG) // block_bytes)
    if blocks < 1:
        raise UsageError(f"{FLAG} {text}: a KV block of this model takes {block_bytes:,.0f} bytes; give at least one")
    return blocks


def checkpoints(
    enabled: bool, save_interval_ms: float | None, strategy: Literal["incremental", "full"], host_kv_memory: str | None
) -> Checkpoint:
    """The settings of checkpoints; UsageError where there is no memory to copy to."""
    if save_interval_ms is None or not enabled:
        return Checkpoint(enabled=enabled)
    if host_kv_memory is None:
        raise UsageError(f"--save-interval-ms {save_interval_ms:g}: needs memory to copy to; give {FLAG}, like 1GiB")
    return Checkpoint(placement="copy", strategy=strategy, save_interval_ms=save_interval_ms)
