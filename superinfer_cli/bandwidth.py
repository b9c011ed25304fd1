"""The measured memory bandwidth of this machine, before an engine starts: measured on first use, kept afterwards."""

from __future__ import annotations

from superinfer.cli.console import err
from superinfer.executor.runtime.cpu import CpuRuntime
from superinfer.executor.runtime.curve_file import ensure_curves


def ensure_bandwidth() -> float:
    """GB/s of the fastest device by all of its cores that this process may use."""
    with err.status("measuring memory bandwidth …"):
        curves = ensure_curves(CpuRuntime())
    return max(point.gb_per_s for curve in curves.values() for point in curve)
