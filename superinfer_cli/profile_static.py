"""The static half of `superinfer profile`: figures from shapes, predictions for devices, the feature library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from superinfer.cli.console import err, out

if TYPE_CHECKING:
    from superinfer.profiler.estimate import DeviceEstimate
    from superinfer.profiler.static_profile import StaticProfile

STATIC_DTYPES = ("auto", "float32", "bfloat16", "float16", "float8", "int8")
CPU = "cpu"


def profile_static(
    model: str,
    dtype: str,
    *,
    device: str | None,
    tensor_parallel: int,
    prefill_tokens: int,
    decode_context: int,
    out_file: Path | None,
    as_json: bool,
) -> None:
    """Print, and with `out_file` write, a model's static features and a device's predicted times."""
    from superinfer.cli.static_source import find_static
    from superinfer.cli.static_tables import estimate_summary, estimate_table, static_tables

    profile = find_static(model, dtype, prefill_tokens=prefill_tokens, decode_context=decode_context)
    estimate = _estimate(profile, device, tensor_parallel, decode_context) if device else None
    if out_file is not None:
        _write_files(out_file, profile, estimate)
    for note in profile.notes:
        err.print(f"note: {note}", markup=False, highlight=False, soft_wrap=True)
    if as_json:
        typer.echo(_as_json(profile, estimate).decode(), nl=False)
        return
    heading = f"{profile.model} ({profile.architecture.model_type}), {profile.dtype}"
    out.print(heading, markup=False, highlight=False)
    out.print(static_tables(profile.static))
    if estimate is not None:
        out.print(estimate_table(estimate))
        out.print(estimate_summary(estimate), markup=False, highlight=False, soft_wrap=True)


def list_library(*, as_json: bool) -> None:
    """Print the feature library."""
    import msgspec

    from superinfer.cli.static_tables import library_table
    from superinfer.profiler.feature_library import library_names, library_profile

    profiles = [library_profile(name) for name in library_names()]
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(profiles), indent=1).decode())
    else:
        out.print(library_table(profiles))


def compare_models(first: str, second: str, dtype: str, *, as_json: bool) -> None:
    """Print two models side by side."""
    import msgspec

    from superinfer.cli.static_source import find_static
    from superinfer.cli.static_tables import comparison, comparison_table

    profiles = find_static(first, dtype), find_static(second, dtype)
    if as_json:
        rows = [
            {"figure": label, "unit": unit, "values": values, "ratio": values[1] / values[0] if values[0] else None}
            for label, unit, *values in comparison(*profiles)
        ]
        data = {"models": [each.model for each in profiles], "dtypes": [each.dtype for each in profiles], "rows": rows}
        typer.echo(msgspec.json.format(msgspec.json.encode(data), indent=1).decode())
    else:
        out.print(comparison_table(*profiles))


def _estimate(profile: StaticProfile, device: str, tensor_parallel: int, decode_context: int) -> DeviceEstimate:
    from superinfer.contracts.errors import UsageError
    from superinfer.profiler.data_sheet import data_sheets
    from superinfer.profiler.estimate import estimate

    efficiency = None
    if device == CPU:
        from superinfer.profiler.cpu_sheet import MEASURED_EFFICIENCY, measured_sheet

        if tensor_parallel > 1:
            raise UsageError(f"--tensor-parallel {tensor_parallel}: --device {CPU} is one core; 1 is accepted")
        sheet, efficiency = measured_sheet(), MEASURED_EFFICIENCY
    else:
        sheets = data_sheets()
        if device not in sheets:
            raise UsageError(f"--device {device}: has no data sheet; accepted: {CPU}, {', '.join(sheets)}")
        sheet = sheets[device]
    return estimate(
        profile.architecture,
        sheet,
        device=device,
        dtype=profile.dtype,
        tensor_parallel=tensor_parallel,
        decode_context=decode_context,
        efficiency=efficiency,
    )


def _as_json(profile: StaticProfile, estimate: DeviceEstimate | None) -> bytes:
    import msgspec

    from superinfer.profiler.static_profile import encode_static

    if estimate is None:
        return encode_static(profile)
    record = {**msgspec.to_builtins(profile), "estimate": msgspec.to_builtins(estimate)}
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def _write_files(out_file: Path, profile: StaticProfile, estimate: DeviceEstimate | None) -> None:
    """The record, and its picture beside it."""
    from superinfer.cli.static_picture import draw_static
    from superinfer.contracts.errors import UsageError

    picture = out_file.with_suffix(".png")
    try:
        out_file.parent.mkdir(parents=True, exist_ok=True)
        out_file.write_bytes(_as_json(profile, estimate))
        draw_static(profile, estimate, picture)
    except OSError as error:
        raise UsageError(f"{out_file} cannot be written: {error.strerror}") from None
    for written in (out_file, picture):
        err.print(f"written: {written}", markup=False, highlight=False, soft_wrap=True)
