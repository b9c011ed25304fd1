"""The name by which tools know a process: forked ones all have the command line of the one they were forked from."""

from __future__ import annotations

import contextlib
from pathlib import Path


def name_process(name: str) -> None:
    """Let `top` and `ps -o comm` show this name, cut at 15 bytes; nothing happens where the system cannot."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name, encoding="utf-8")
