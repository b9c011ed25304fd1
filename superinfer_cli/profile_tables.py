"""How a profile is shown on the terminal: the four static dimensions, then what was measured."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table

from superinfer.profiler.static import StaticFeatures
from superinfer.profiler.store import ModelProfile

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def quantity(value: float, unit: str) -> str:
    """A value with a decimal prefix and four significant digits: 140.3 GFLOP."""
    for factor, prefix in _PREFIXES:
        if abs(value) >= factor:
            return f"{value / factor:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def static_tables(features: StaticFeatures) -> Group:
    """One table for each of the four dimensions."""
    return Group(
        _compute_table(features),
        _bandwidth_table(features),
        _memory_table(features),
        _communication_table(features),
    )


def measured_tables(profile: ModelProfile) -> Group:
    """Achieved rates, the latency model's constants and its errors."""
    device = profile.device
    rates = _table(f"Measured: {device.name}, {device.threads} thread(s), {profile.dtype}", "", "value")
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

    latency = _table("Latency model", "constant", "value")
    latency.add_row("each step", _duration(model.launch_s))
    for tokens, seconds in model.linear_points[1:]:
        latency.add_row(f"linear layers, {tokens:.0f} tokens", f"+ {_duration(seconds)}")
    latency.add_row("each cached token of a decode", _duration(model.decode_context_s))
    latency.add_row("each decode", _duration(model.decode_s))
    latency.add_row("each (query, key) pair of a prefill", _duration(model.prefill_pair_s))
    latency.add_row("each prefill chunk", _duration(model.chunk_s))
    latency.add_row("output head, where any row is sampled", _duration(model.head_s))
    latency.add_row("each sampled row", _duration(model.row_s))

    errors = _table("Error on steps the fit had not seen", "", "value")
    errors.add_row("median relative error", f"{profile.fit.median_relative_error:.1%}")
    errors.add_row("90th percentile", f"{profile.fit.p90_relative_error:.1%}")
    for quantile, ratio in sorted(model.residual_quantiles.items()):
        errors.add_row(f"measured / predicted, quantile {quantile:g}", f"{ratio:.3f}")
    errors.add_row("steps (shapes)", f"{profile.fit.steps} ({profile.fit.shapes})")
    return Group(rates, latency, errors)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    return table


def _duration(seconds: float) -> str:
    for factor, unit in ((1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 1.0:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def _compute_table(features: StaticFeatures) -> Table:
    compute = features.compute
    table = _table("Compute density", "", "value")
    table.add_row("parameters", quantity(compute.parameters, "").strip())
    table.add_row("active per token", quantity(compute.active_parameters, "").strip())
    table.add_row(
        f"prefill of {compute.prefill_tokens} tokens, per token",
        quantity(compute.prefill_flops_per_token, "FLOP"),
    )
    table.add_row(
        f"decode after {compute.decode_context} tokens, per token",
        quantity(compute.decode_flops_per_token, "FLOP"),
    )
    return table


def _bandwidth_table(features: StaticFeatures) -> Table:
    bandwidth = features.bandwidth
    table = _table("Bandwidth sensitivity (batch size 1)", "phase", "read/token", "written/token", "FLOP/byte")
    table.add_row(
        "prefill",
        quantity(bandwidth.prefill_read_bytes_per_token, "B"),
        quantity(bandwidth.prefill_write_bytes_per_token, "B"),
        f"{bandwidth.prefill_flops_per_byte:.4g}",
    )
    table.add_row(
        "decode",
        quantity(bandwidth.decode_read_bytes_per_token, "B"),
        quantity(bandwidth.decode_write_bytes_per_token, "B"),
        f"{bandwidth.decode_flops_per_byte:.4g}",
    )
    return table


def _memory_table(features: StaticFeatures) -> Table:
    memory = features.memory
    table = _table("Memory pattern", "", "value")
    table.add_row("static weights", quantity(memory.weight_bytes, "B"))
    table.add_row("KV cache per token", f"{memory.kv_bytes_per_token:,} B")
    if memory.max_position is not None:
        table.add_row(
            f"KV cache of the longest context ({memory.max_position:,} tokens)",
            quantity(memory.kv_bytes_per_token * memory.max_position, "B"),
        )
    return table


def _communication_table(features: StaticFeatures) -> Table:
    table = _table(
        "Compute to communication (sent per token and device)",
        "devices",
        "all-reduce",
        "all-to-all (experts)",
        "FLOP/byte",
    )
    for row in features.communication:
        table.add_row(
            str(row.degree),
            quantity(row.all_reduce_bytes_per_token, "B"),
            quantity(row.all_to_all_bytes_per_token, "B") if row.all_to_all_bytes_per_token else "none",
            f"{row.flops_per_byte:,.0f}",
        )
    return table
