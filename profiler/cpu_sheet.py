"""The data sheet of this machine's CPU, by measurement: one core, as a worker has it."""

from __future__ import annotations

import time

import psutil

from superinfer.profiler.data_sheet import DataSheet
from superinfer.profiler.device import memory_read_gb_per_s
from superinfer.profiler.roofline import Efficiency

MATRIX_SIZES = {"float32": 1024, "bfloat16": 256}
"""Some CPUs multiply bfloat16 a hundred times slower than float32: its matrices are small enough for that."""

REPEATS = 5

MEASURED_EFFICIENCY = Efficiency(
    prefill_flops=0.85, attention_flops=0.4, bandwidth=0.9, layer_launch_s=50e-6, step_launch_s=1e-3, memory_share=0.8
)
"""Shares of measured peaks, which unlike published ones have been reached; a layer's kernels are Python calls."""


def measured_sheet() -> DataSheet:
    """Peaks of one core: square matrix products in float32 and bfloat16, reads of a buffer larger than the caches.

    Takes about a second, by the thread's own time, so that other processes count little. A CPU that multiplies bfloat16
    slower than float32 is taken to widen it, as the engine's kernels do.
    """
    rates = {name: _product_tflops(name, size) for name, size in MATRIX_SIZES.items()}
    bandwidth = memory_read_gb_per_s()
    return DataSheet(
        source="measured on one core of this machine",
        bf16_tflops=max(rates.values()),
        float32_tflops=rates["float32"],
        memory_gb=psutil.virtual_memory().total / 1e9,
        bandwidth_gb_per_s=bandwidth,
        host_link_gb_per_s=bandwidth,
    )


def _product_tflops(dtype: str, size: int) -> float:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        left = torch.ones((size, size), dtype=getattr(torch, dtype))
        right = left.clone()
        seconds = []
        for _ in range(REPEATS):
            started = time.thread_time()
            torch.mm(left, right)
            seconds.append(time.thread_time() - started)
    finally:
        torch.set_num_threads(threads)
    return 2.0 * size**3 / min(seconds) / 1e12
