"""The device that a profile is valid for: its name, and how fast one thread reads its memory."""

from __future__ import annotations

import platform
import time
from pathlib import Path

import numpy as np

BUFFER_BYTES = 256 * 2**20
READS = 8


def device_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The CPU's model string, or its architecture where the system does not tell."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or platform.machine() or "unknown CPU"


def memory_read_gb_per_s(buffer_bytes: int = BUFFER_BYTES) -> float:
    """The best rate (10⁹ bytes/s) of one thread that reads a buffer larger than the caches.

    By the thread's own time: while others have its core it does not count.
    """
    buffer = np.ones(buffer_bytes // 4, dtype=np.int32)
    seconds = []
    for _ in range(READS):
        started = time.thread_time()
        buffer.max()
        seconds.append(time.thread_time() - started)
    return buffer.nbytes / min(seconds) / 1e9
