"""How long a process was ready to run while others had its core: what a measured time contains of them."""

from __future__ import annotations

from pathlib import Path


def core_wait_s(pid: int, proc: Path = Path("/proc")) -> float:
    """Seconds that the main thread of `pid` has waited for a core so far; 0 where the kernel does not count it."""
    try:
        _, waited_ns, _ = (proc / str(pid) / "schedstat").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return 0.0
    return int(waited_ns) / 1e9
