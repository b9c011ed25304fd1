"""Host memory for the KV of rotated requests: from bytes on the command line to the scheduler's blocks."""

from __future__ import annotations

from superinfer.cli.serve.sizes import parse_bytes
from superinfer.contracts.errors import UsageError
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
