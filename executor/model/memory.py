"""How much memory may be taken, asked before it is taken: a refusal is one clear line, an out-of-memory kill is not."""

from __future__ import annotations

from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def available_memory_bytes() -> int:
    """Memory this process can still use: what the system has free, within a container's limit."""
    available: int = psutil.virtual_memory().available
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        if limit != "max":
            used = int((_CGROUP / "memory.current").read_text())
            available = min(available, max(int(limit) - used, 0))
    except (OSError, ValueError):
        pass
    return available


def format_bytes(count: int) -> str:
    """A count of bytes for a person: exact below 1 MiB, else in MiB or GiB."""
    if count >= 2**30:
        return f"{count / 2**30:.2f} GiB"
    if count >= 2**20:
        return f"{count / 2**20:.1f} MiB"
    return f"{count} bytes"
