"""How a measured profile is shown on the terminal."""

from __future__ import annotations

from rich.console import Group

from superinfer.cli.static_tables import feature_table, quantity
from superinfer.profiler.store import ModelProfile


def measured_tables(profile: ModelProfile) -> Group:
    """Achieved rates, the latency model's constants and its errors."""
    device = profile.device
    rates = feature_table(f"Measured: {device.name}, {device.threads} thread(s), {profile.precision}", "", "value")
    rates.add_row("prefill, best step", quantity(profile.measured.prefill_gflop_per_s * 1e9, "FLOP/s"))
    decode = quantity(profile.measured.decode_gb_per_s * 1e9, "B/s")
    if device.memory_read_gb_per_s:
        share = profile.measured.decode_gb_per_s / device.memory_read_gb_per_s
        rates.add_row(
            "decode reads, best step",
            f"{decode}, {share:.0%} of {quantity(device.memory_read_gb_per_s * 1e9, 'B/s')} from memory",
        )
    else:
        rates.add_row("decode reads, best step", decode)
    rates.add_row("other processes on this core", f"{profile.measured.waited_share:.0%} of the time")
    model = profile.latency_model
    rates.add_row("one decode after 128 tokens", f"{model.decode_step_s(128) * 1e3:.1f} ms")
    rates.add_row("prefill of 256 tokens", f"{model.prefill_s(0, 256) * 1e3:.1f} ms")

    latency = feature_table("Latency model", "constant", "value")
    latency.add_row("each step", _duration(model.launch_s))
    for tokens, seconds in model.linear_points[1:]:
        latency.add_row(f"linear layers, {tokens:.0f} tokens", f"+ {_duration(seconds)}")
    latency.add_row("each cached token of a decode", _duration(model.decode_context_s))
    latency.add_row("each decode", _duration(model.decode_s))
    latency.add_row("each (query, key) pair of a prefill", _duration(model.prefill_pair_s))
    latency.add_row("each prefill chunk", _duration(model.chunk_s))
    latency.add_row("output head, where any row is sampled", _duration(model.head_s))
    latency.add_row("each sampled row", _duration(model.row_s))

    errors = feature_table("Error on steps the fit had not seen", "", "value")
    errors.add_row("median relative error", f"{profile.fit.median_relative_error:.1%}")
    errors.add_row("90th percentile", f"{profile.fit.p90_relative_error:.1%}")
    if profile.fit.tracked_median_relative_error is not None and profile.fit.tracked_p90_relative_error is not None:
        errors.add_row("with online correction, median", f"{profile.fit.tracked_median_relative_error:.1%}")
        errors.add_row("with online correction, 90th percentile", f"{profile.fit.tracked_p90_relative_error:.1%}")
    for quantile, ratio in sorted(model.residual_quantiles.items()):
        errors.add_row(f"measured / predicted, quantile {quantile:g}", f"{ratio:.3f}")
    if profile.noise is not None:
        errors.add_row("noise of each step alone (sigma)", f"{profile.noise.sigma:.1%}")
        if profile.noise.drift is not None:
            errors.add_row(
                f"drift of the device's speed over {profile.noise.drift.lasts_s:g} s (sigma)",
                f"{profile.noise.drift.sigma:.1%}",
            )
    errors.add_row("steps (shapes)", f"{profile.fit.steps} ({profile.fit.shapes})")
    return Group(rates, latency, errors)


def _duration(seconds: float) -> str:
    for factor, unit in ((1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 1.0:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
