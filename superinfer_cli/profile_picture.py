"""The picture of a profile: roofline, measured against predicted steps, and the time of a step by its tokens."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from superinfer.profiler.static import step_flops, step_read_bytes
from superinfer.profiler.store import FitErrors, MeasuredPoint, ModelProfile

COLORS = {"decode": "#0072b2", "prefill": "#d55e00", "mixed": "#009e73"}
MARKERS = {"decode": "o", "prefill": "s", "mixed": "^"}


def draw_profile(profile: ModelProfile, path: Path) -> None:
    """Write a PNG with three panels."""
    figure = Figure(figsize=(16, 5), layout="constrained")
    FigureCanvasAgg(figure)
    roofline, agreement, curve = figure.subplots(1, 3)
    _draw_roofline(roofline, profile)
    _draw_agreement(agreement, profile)
    _draw_curve(curve, profile)
    figure.suptitle(
        f"{profile.model} · {profile.precision} · {profile.device.name}, {profile.device.threads} thread(s)"
    )
    figure.savefig(path, dpi=120)


def _phase(point: MeasuredPoint) -> str:
    if point.chunks == 0:
        return "decode"
    return "mixed" if point.decodes else "prefill"


def _scatter(axes: Any, profile: ModelProfile, xy: list[tuple[float, float]]) -> None:
    for phase, color in COLORS.items():
        chosen = [value for value, p in zip(xy, profile.measured.points, strict=True) if _phase(p) == phase]
        if chosen:
            x, y = zip(*chosen, strict=True)
            axes.scatter(x, y, s=26, color=color, marker=MARKERS[phase], label=phase, zorder=3)


def _plain_log_ticks(axes: Any) -> None:
    """40 instead of 4 × 10¹, at 1, 2 and 5 of each decade."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else ""))
    axes.grid(True, which="both", alpha=0.2)


def _draw_roofline(axes: Any, profile: ModelProfile) -> None:
    architecture = profile.architecture
    xy = []
    for point in profile.measured.points:
        flops = step_flops(architecture, point.shape)
        read = step_read_bytes(
            architecture,
            profile.dtype,
            tokens=point.tokens,
            context=point.decode_context,
            weight_dtype=profile.weight_dtype,
        )
        xy.append((flops / read, flops / statistics.median(point.seconds) / 1e9))
    peak = max(y for _, y in xy)
    intensity = np.geomspace(min(x for x, _ in xy) / 2, max(x for x, _ in xy) * 2, 200)
    bandwidth = profile.device.memory_read_gb_per_s
    if bandwidth:
        axes.plot(
            intensity,
            np.minimum(intensity * bandwidth, peak),
            color="0.4",
            label=f"{bandwidth:.1f} GB/s memory, {peak:.0f} GFLOP/s best step",
        )
    _scatter(axes, profile, xy)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="FLOP per byte read",
        ylabel="GFLOP/s achieved",
        title="Roofline",
    )
    _plain_log_ticks(axes)
    axes.legend(fontsize=8)


def _draw_agreement(axes: Any, profile: ModelProfile) -> None:
    model = profile.latency_model
    xy = [
        (statistics.median(p.seconds) * 1e3, model.uncorrected_step_s(p.shape) * 1e3) for p in profile.measured.points
    ]
    low = min(min(pair) for pair in xy) * 0.8
    high = max(max(pair) for pair in xy) * 1.25
    line = np.array([low, high])
    axes.plot(line, line, color="0.4")
    axes.fill_between(line, line * 0.85, line * 1.15, color="0.85", label="± 15 %")
    upper = model.upper_ratio
    axes.plot(line, line / upper, color="0.4", linestyle="--", label=f"p90: measured {upper:.2f} × predicted")
    _scatter(axes, profile, xy)
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(low, high),
        ylim=(low, high),
        xlabel="measured step, ms (median)",
        ylabel="predicted step, ms",
        title=_error_title(profile.fit),
    )
    _plain_log_ticks(axes)
    axes.legend(fontsize=8)


def _error_title(fit: FitErrors) -> str:
    median, p90 = fit.tracked_median_relative_error, fit.tracked_p90_relative_error
    if median is None or p90 is None:
        median, p90 = fit.median_relative_error, fit.p90_relative_error
    return f"Latency model: error {median:.1%} median, {p90:.1%} p90 (single held-out steps)"


def _draw_curve(axes: Any, profile: ModelProfile) -> None:
    model = profile.latency_model
    tokens = np.array([x for x, _ in model.linear_points])
    linear_ms = np.array([(model.launch_s + y) * 1e3 for _, y in model.linear_points])
    axes.plot(tokens, linear_ms, color="0.2", marker=".", label="each step + linear layers (fitted)")
    xy = [(float(p.tokens), statistics.median(p.seconds) * 1e3) for p in profile.measured.points]
    _scatter(axes, profile, xy)
    axes.set(xlabel="tokens in the step", ylabel="ms", title="Time of a step", xlim=(0, None), ylim=(0, None))
    axes.grid(True, alpha=0.2)
    axes.legend(fontsize=8)
