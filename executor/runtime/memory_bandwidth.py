"""Measured memory bandwidth of a CPU by the number of its cores that read at once."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import numpy.typing as npt

from superinfer.executor.runtime.description import BandwidthPoint, mask_of

BUFFER_BYTES = 128 * 2**20
"""Of each core; beyond what the caches hold."""
READ_S = 0.15
ROUNDS = 4
QUIET_SHARE = 0.95
"""A round in which the reading threads had this much of their cores needs no other."""


def measure_curve(
    cores: list[int], *, buffer_bytes: int = BUFFER_BYTES, read_s: float = READ_S
) -> list[BandwidthPoint]:
    """Bandwidth of the first 1, 2, 4, … and all of `cores`, each reading a buffer of its own.

    Of up to `ROUNDS` rounds the one in which other processes had least of the cores: `core_share` says how little.
    """
    counts = sorted({min(2**power, len(cores)) for power in range(len(cores).bit_length() + 1)})
    points = []
    for count in counts:
        best = BandwidthPoint(mask=mask_of(cores[:count]), gb_per_s=0.0, core_share=0.0)
        for _ in range(ROUNDS):
            rate, share = _read_together(cores[:count], buffer_bytes, read_s)
            if share > best.core_share:
                best = BandwidthPoint(mask=best.mask, gb_per_s=rate, core_share=min(share, 1.0))
            if share >= QUIET_SHARE:
                break
        points.append(best)
    return points


def _read_together(cores: list[int], buffer_bytes: int, read_s: float) -> tuple[float, float]:
    """GB/s of all cores together while all of them read, and the share of the time that they had them."""
    rates, shares = [0.0] * len(cores), [0.0] * len(cores)
    barrier = threading.Barrier(len(cores))

    def read(number: int) -> None:
        os.sched_setaffinity(0, [cores[number]])  # 0 is the calling thread, which ends with this function
        # Pages of a buffer that is never written are one page of zeros, which any cache holds.
        buffer: npt.NDArray[np.int32] = np.ones(buffer_bytes // 4, np.int32)
        barrier.wait()
        started, own_started = time.perf_counter(), time.thread_time()
        reads = 0
        while (elapsed := time.perf_counter() - started) < read_s or not reads:
            buffer.max()
            reads += 1
        rates[number] = reads * buffer.nbytes / elapsed / 1e9
        shares[number] = (time.thread_time() - own_started) / elapsed

    threads = [threading.Thread(target=read, args=(number,)) for number in range(len(cores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(rates), min(shares)
