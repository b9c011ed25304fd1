"""What --host-kv-memory, --checkpoint and --save-interval-ms come to, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from superinfer.cli.host_memory import checkpoints, host_blocks
from superinfer.contracts.errors import UsageError
from superinfer.executor.config import Checkpoint

PROFILE = SimpleNamespace(static=SimpleNamespace(memory=SimpleNamespace(kv_bytes_per_token=1024)))


def test_memory_is_counted_in_whole_blocks() -> None:
    assert host_blocks(None, PROFILE, 16) == 0  # type: ignore[arg-type]
    assert host_blocks("1MiB", PROFILE, 16) == 64  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="--host-kv-memory 1KiB: a KV block of this model takes 16,384 bytes"):
        host_blocks("1KiB", PROFILE, 16)  # type: ignore[arg-type]


def test_an_interval_makes_copies_and_needs_memory_to_copy_to() -> None:
    assert checkpoints(True, None, "incremental", None) == Checkpoint()
    assert checkpoints(False, 50.0, "full", None) == Checkpoint(enabled=False)
    wanted = Checkpoint(placement="copy", strategy="full", save_interval_ms=20.0)
    assert checkpoints(True, 20.0, "full", "1GiB") == wanted
    with pytest.raises(UsageError, match=r"--save-interval-ms 50: needs memory to copy to; give --host-kv-memory"):
        checkpoints(True, 50.0, "incremental", None)
