"""The picture of a static profile: its phases under a device's roofline, and the memory it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from superinfer.cli.static_tables import plain_number
from superinfer.profiler.estimate import DeviceEstimate
from superinfer.profiler.static import memory_bytes, step_read_bytes
from superinfer.profiler.static_profile import StaticProfile

COLOURS = {"decode": "#0072b2", "prefill": "#d55e00"}
MARKERS = {"decode": "o", "prefill": "s"}
BATCHES = (1, 8, 32, 128)


def draw_static(profile: StaticProfile, estimate: DeviceEstimate | None, path: Path) -> None:
    """Write a PNG with two panels; the device's limits are in both where one is given."""
    figure = Figure(figsize=(13, 5), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    if estimate is None:
        _draw_reads(left, profile)
    else:
        _draw_roofline(left, estimate)
    _draw_memory(right, profile, estimate)
    figure.suptitle(f"{profile.model} · {profile.dtype} · from its shapes, nothing measured")
    figure.savefig(path, dpi=120)


def _draw_roofline(axes: Any, estimate: DeviceEstimate) -> None:
    intensity = np.array([phase.flops_per_byte for phase in estimate.phases])
    line = np.geomspace(min(intensity.min(), 1.0) / 2, max(intensity.max(), 1e3) * 2, 200)
    roof = np.minimum(line * estimate.bandwidth_gb_per_s / 1e3, estimate.peak_tflops)
    label = f"{plain_number(estimate.bandwidth_gb_per_s)} GB/s, {plain_number(estimate.peak_tflops)} TFLOP/s at best"
    axes.plot(line, roof, color="0.4", label=label)
    for kind, colour in COLOURS.items():
        chosen = [phase for phase in estimate.phases if phase.phase == kind]
        heights = [phase.tflops for phase in chosen]
        axes.scatter(
            [phase.flops_per_byte for phase in chosen],
            heights,
            color=colour,
            marker=MARKERS[kind],
            label=f"{kind}, predicted",
            zorder=3,
        )
        for phase, height in zip(chosen, heights, strict=True):
            axes.annotate(
                f"{phase.tokens:,}",
                (phase.flops_per_byte, height),
                textcoords="offset points",
                xytext=(5, -9),
                fontsize=7,
            )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="FLOP per byte",
        ylabel="TFLOP/s",
        title=f"Roofline: {estimate.tensor_parallel} × {estimate.device} (tokens, or batch, beside each point)",
    )
    axes.grid(True, which="both", alpha=0.2)
    axes.legend(fontsize=8)


def _draw_reads(axes: Any, profile: StaticProfile) -> None:
    """Bytes that a decode step reads per token, by batch: sharing the weights is what a batch buys."""
    batches = np.unique(np.geomspace(1, 512, 40).astype(int))
    context = profile.static.compute.decode_context
    seen = profile.architecture.visible_keys(context)
    reads = [
        step_read_bytes(profile.architecture, profile.dtype, tokens=int(batch), context=batch * seen) / batch / 1e9
        for batch in batches
    ]
    axes.plot(batches, reads, color=COLOURS["decode"])
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="batch",
        ylabel="GB read per token",
        title=f"Decode reads, contexts of {context:,} tokens",
    )
    axes.grid(True, which="both", alpha=0.2)


def _draw_memory(axes: Any, profile: StaticProfile, estimate: DeviceEstimate | None) -> None:
    longest = profile.architecture.max_position or 131_072
    contexts = np.unique(np.geomspace(128, max(longest, 256), 60).astype(int))
    for number, batch in enumerate(BATCHES):
        needs = [
            memory_bytes(profile.architecture, profile.dtype, context=int(context), batch=batch) / 1e9
            for context in contexts
        ]
        axes.plot(contexts, needs, color=str(0.75 - 0.22 * number), label=f"batch {batch}")
    if estimate is not None:
        label = f"{estimate.tensor_parallel} × {estimate.device}"
        axes.axhline(estimate.memory_gb, color=COLOURS["prefill"], linestyle="--", label=label)
    axes.set(xscale="log", yscale="log", xlabel="context, tokens", ylabel="GB", title="Weights and KV cache")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(True, which="both", alpha=0.2)
    axes.legend(fontsize=8)
