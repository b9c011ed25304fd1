"""How a model's static features, and what a device would do with it, are shown on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table

from superinfer.profiler.estimate import DeviceEstimate
from superinfer.profiler.static import StaticFeatures
from superinfer.profiler.static_profile import StaticProfile

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def quantity(value: float, unit: str) -> str:
    """A value with a decimal prefix and four significant digits: 140.3 GFLOP."""
    for factor, prefix in _PREFIXES:
        if abs(value) >= factor:
            return f"{value / factor:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def plain_number(value: float) -> str:
    """Four significant digits, thousands apart: 15,830; never an exponent."""
    return f"{float(f'{value:.4g}'):,g}" if abs(value) < 1e5 else f"{float(f'{value:.4g}'):,.0f}"


def feature_table(title: str, *columns: str) -> Table:
    """A titled table: the first column to the left, figures to the right."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    return table


def static_tables(features: StaticFeatures) -> Group:
    """Tables of the four dimensions."""
    return Group(
        _compute_table(features),
        _bandwidth_table(features),
        _memory_table(features),
        *([_needs_table(features)] if features.memory.needs else []),
        *([_experts_table(features)] if features.touched_experts else []),
        _communication_table(features),
    )


def _compute_table(features: StaticFeatures) -> Table:
    compute = features.compute
    table = feature_table("Compute density", "", "value")
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
    table = feature_table("Bandwidth sensitivity (batch size 1)", "phase", "read/token", "written/token", "FLOP/byte")
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
    table = feature_table("Memory pattern", "", "value")
    table.add_row("static weights", quantity(memory.weight_bytes, "B"))
    table.add_row("KV cache per token", f"{memory.kv_bytes_per_token:,} B")
    if memory.max_position is not None:
        table.add_row(
            f"KV cache of the longest context ({memory.max_position:,} tokens)",
            quantity(memory.kv_bytes_per_token * memory.max_position, "B"),
        )
    return table


def _communication_table(features: StaticFeatures) -> Table:
    table = feature_table(
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


def _needs_table(features: StaticFeatures) -> Table:
    batches = sorted({need.batch for need in features.memory.needs})
    table = feature_table("Memory needed: weights and KV cache", "context", *(f"batch {batch}" for batch in batches))
    for context in sorted({need.context for need in features.memory.needs}):
        row = {need.batch: need.total_bytes for need in features.memory.needs if need.context == context}
        table.add_row(f"{context:,}", *(quantity(row[batch], "B") for batch in batches))
    return table


def _experts_table(features: StaticFeatures) -> Table:
    table = feature_table("Experts of a layer that a step touches (even routing)", "tokens in the step", "experts")
    for each in features.touched_experts:
        table.add_row(str(each.tokens), f"{each.experts:.2f}")
    return table


def estimate_table(estimate: DeviceEstimate) -> Table:
    """What each phase would take, beside the least that the published peaks allow, and what limits it."""
    table = feature_table(
        f"Predicted, not measured: {estimate.tensor_parallel} × {estimate.device}, {estimate.dtype}",
        "step",
        "time",
        "at peaks",
        "tokens/s",
        "FLOP/byte",
        "limit",
    )
    for phase in estimate.phases:
        if phase.phase == "prefill":
            what = f"prefill of {phase.tokens:,} tokens"
        else:
            what = f"decode, batch {phase.tokens} after {phase.context:,} tokens"
        table.add_row(
            what if phase.fits else f"{what} (does not fit)",
            f"{phase.seconds * 1e3:,.1f} ms",
            f"{phase.least_seconds * 1e3:,.1f} ms",
            f"{phase.tokens_per_s:,.0f}",
            f"{phase.flops_per_byte:.3g}",
            phase.limit,
        )
    return table


def estimate_summary(estimate: DeviceEstimate) -> str:
    """One line: peaks, memory, and the KV cache that fits."""
    room = f"{estimate.kv_tokens:,} tokens of KV cache fit" if estimate.kv_tokens else "the weights do not fit"
    return (
        f"{plain_number(estimate.peak_tflops)} TFLOP/s, {plain_number(estimate.bandwidth_gb_per_s)} GB/s, "
        f"{plain_number(estimate.memory_gb)} GB; weights {plain_number(estimate.weight_gb)} GB; {room} "
        f"({estimate.source})"
    )


def library_table(profiles: Sequence[StaticProfile]) -> Table:
    """One row a model of the feature library."""
    table = feature_table(
        "Feature library",
        "model",
        "parameters",
        "active",
        "prefill FLOP/token",
        "KV B/token",
        "weights",
        "context",
    )
    for profile in profiles:
        compute, memory = profile.static.compute, profile.static.memory
        table.add_row(
            profile.model,
            quantity(compute.parameters, "").strip(),
            quantity(compute.active_parameters, "").strip(),
            quantity(compute.prefill_flops_per_token, "FLOP"),
            f"{memory.kv_bytes_per_token:,}",
            quantity(memory.weight_bytes, "B"),
            "-" if memory.max_position is None else f"{memory.max_position:,}",
        )
    return table


def comparison_table(first: StaticProfile, second: StaticProfile) -> Table:
    """Two models figure by figure, and the second as a multiple of the first."""
    table = feature_table("Comparison", "", first.model, second.model, "ratio")
    for label, unit, *values in comparison(first, second):
        shown = [f"{value:,}" if isinstance(value, int) and not unit else quantity(value, unit) for value in values]
        table.add_row(label, *shown, f"{values[1] / values[0]:.3g}" if values[0] else "-")
    return table


def comparison(first: StaticProfile, second: StaticProfile) -> list[tuple[str, str, float, float]]:
    """The figures that two models are compared by: what, its unit, and the value of each."""

    def pair(label: str, unit: str, pick: str) -> tuple[str, str, float, float]:
        group, name = pick.split(".")
        values = [getattr(getattr(each.static, group), name) for each in (first, second)]
        return label, unit, values[0], values[1]

    lengths = first.static.compute
    rows = [
        pair("parameters", "", "compute.parameters"),
        pair("active per token", "", "compute.active_parameters"),
        pair(f"prefill of {lengths.prefill_tokens} tokens, per token", "FLOP", "compute.prefill_flops_per_token"),
        pair(f"decode after {lengths.decode_context} tokens", "FLOP", "compute.decode_flops_per_token"),
        pair("decode reads per token, batch 1", "B", "bandwidth.decode_read_bytes_per_token"),
        pair("prefill FLOP per byte", "FLOP/B", "bandwidth.prefill_flops_per_byte"),
        pair("decode FLOP per byte, batch 1", "FLOP/B", "bandwidth.decode_flops_per_byte"),
        pair("static weights", "B", "memory.weight_bytes"),
        pair("KV cache per token", "B", "memory.kv_bytes_per_token"),
    ]
    for mine, others in zip(first.static.communication, second.static.communication, strict=True):
        label = f"sent per token by each of {mine.degree} devices"
        sent = [each.all_reduce_bytes_per_token + each.all_to_all_bytes_per_token for each in (mine, others)]
        rows.append((label, "B", sent[0], sent[1]))
    return rows
