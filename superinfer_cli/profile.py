"""`superinfer profile`: what a model costs, from its config alone and measured on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from superinfer.cli.console import err, out, progress_bar

if TYPE_CHECKING:
    from rich.console import Console

    from superinfer.executor.config import DType
    from superinfer.executor.models.source import ModelSource
    from superinfer.profiler.architecture import ModelArchitecture
    from superinfer.profiler.static import StaticFeatures
    from superinfer.profiler.store import ModelProfile

DTYPES: tuple[DType, ...] = ("auto", "float32", "bfloat16")
BUSY_SHARE = 0.1
STATIC_SCHEMA = "superinfer.static-profile/1"


def profile(
    model: Annotated[str, typer.Argument(help="Known model name, local directory, config.json or hub id.")],
    static_only: Annotated[
        bool, typer.Option("--static-only", help="From the config alone: no weights, nothing is run.")
    ] = False,
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Measure with random weights, from the config.")
    ] = False,
    dtype: Annotated[
        str, typer.Option(help="auto, float32 or bfloat16; auto is what a worker takes on this CPU.")
    ] = "auto",
    time_budget: Annotated[
        float, typer.Option(help="Seconds for the measurement, loading the model not counted.")
    ] = 75.0,
    out_file: Annotated[Path | None, typer.Option("--out", help="Feature file. Default: the profile cache.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the features as JSON, nothing else.")] = False,
) -> None:
    """Print a model's four dimensions, measure it here, write its feature file and a picture beside it."""
    checked_dtype = _checked_dtype(dtype)
    _check_options(static_only, random_weights, time_budget, out_file)
    if static_only:
        _profile_static(model, checked_dtype, out_file, as_json=as_json)
    else:
        _profile_measured(
            model,
            checked_dtype,
            random_weights=random_weights,
            time_budget_s=time_budget,
            out_file=out_file,
            as_json=as_json,
        )


def ensure_profile(source: ModelSource, dtype: DType, *, random_weights: bool = False, console: Console = err) -> Path:
    """The cached profile of (model, this device, precision), measured now where there is none that fits."""
    from superinfer.contracts.errors import ModelError
    from superinfer.executor.profile_model import THREADS, resolve_dtype
    from superinfer.profiler.architecture import load_architecture
    from superinfer.profiler.device import device_name
    from superinfer.profiler.store import load_profile, profile_path, save_profile

    path = profile_path(source.name, device_name(), resolve_dtype(dtype), THREADS)
    reason = "first use of this model here"
    if path.exists():
        try:
            if load_profile(path).architecture == load_architecture(source.directory):
                return path
            reason = "the cached profile is of another model of this name"
        except ModelError as error:
            reason = str(error)
    console.print(
        f"profiling {source.name} ({reason}); about a minute, kept in {path}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    save_profile(path, _measure(source, dtype, random_weights=random_weights, log_path=_log_path(path)))
    return path


def _measure(
    source: ModelSource,
    dtype: DType,
    *,
    random_weights: bool,
    log_path: Path,
    time_budget_s: float | None = None,
) -> ModelProfile:
    """Measure with a progress bar on stderr, and a note there if the machine was too busy to measure well."""
    from superinfer.executor.profile_model import profile_model
    from superinfer.profiler.measure import DEFAULT_BUDGET_S

    with progress_bar() as bar:
        task = bar.add_task("loading the model", total=None)

        def report(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        result = profile_model(
            source,
            dtype,
            random_weights=random_weights,
            budget_s=DEFAULT_BUDGET_S if time_budget_s is None else time_budget_s,
            progress=report,
            log_path=log_path,
        )
    if result.measured.waited_share > BUSY_SHARE:
        err.print(
            f"note: other processes used the worker's core for {result.measured.waited_share:.0%} of the time; "
            "profile again on an idle machine for tighter figures",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    return result


def _profile_measured(
    model: str,
    dtype: DType,
    *,
    random_weights: bool,
    time_budget_s: float,
    out_file: Path | None,
    as_json: bool,
) -> None:
    from superinfer.cli.profile_picture import draw_profile
    from superinfer.cli.profile_tables import measured_tables, static_tables
    from superinfer.executor.profile_model import THREADS, resolve_dtype
    from superinfer.profiler.architecture import load_architecture
    from superinfer.profiler.device import device_name
    from superinfer.profiler.static import static_features
    from superinfer.profiler.store import profile_path, save_profile

    source = _resolve(model)
    resolved = resolve_dtype(dtype)
    path = out_file or profile_path(source.name, device_name(), resolved, THREADS)
    if not as_json:
        out.print(static_tables(static_features(load_architecture(source.directory), resolved)))
    _write(path, lambda: path.parent.mkdir(parents=True, exist_ok=True))
    log_path = _log_path(path)
    try:
        result = _measure(source, dtype, random_weights=random_weights, time_budget_s=time_budget_s, log_path=log_path)
    except KeyboardInterrupt:
        if log_path.exists():
            err.print("interrupted; the same command within an hour goes on from here", markup=False, highlight=False)
        raise
    _write(path, lambda: save_profile(path, result))
    picture = path.with_suffix(".png")
    _write(picture, lambda: draw_profile(result, picture))
    if as_json:
        _print_json(result)
    else:
        out.print(measured_tables(result))
    for written in (path, picture):
        err.print(f"written: {written}", markup=False, highlight=False, soft_wrap=True)


def _log_path(path: Path) -> Path:
    """Where the samples of a sweep under way are kept."""
    return path.with_suffix(".partial.jsonl")


def _profile_static(model: str, dtype: DType, out_file: Path | None, *, as_json: bool) -> None:
    from superinfer.cli.profile_tables import static_tables
    from superinfer.profiler.architecture import load_architecture, stored_dtype
    from superinfer.profiler.static import static_features

    path = Path(model).expanduser()
    directory = path if path.is_file() or path.is_dir() else _resolve(model).directory
    architecture = load_architecture(directory)
    resolved = stored_dtype(directory) if dtype == "auto" else dtype
    features = static_features(architecture, resolved)
    name = path.resolve().parent.name if path.is_file() else Path(model).name
    record = _static_record(name, resolved, architecture, features)
    if out_file is not None:
        import msgspec

        text = msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
        _write(out_file, lambda: out_file.write_bytes(text))
        err.print(f"written: {out_file}", markup=False, highlight=False, soft_wrap=True)
    if as_json:
        _print_json(record)
    else:
        out.print(f"{name} ({architecture.model_type}), {resolved}", markup=False, highlight=False)
        out.print(static_tables(features))


def _static_record(name: str, dtype: str, architecture: ModelArchitecture, features: StaticFeatures) -> dict[str, Any]:
    return {
        "schema": STATIC_SCHEMA,
        "model": name,
        "dtype": dtype,
        "architecture": architecture,
        "static": features,
    }


def _print_json(value: object) -> None:
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=1).decode())


def _resolve(model: str) -> ModelSource:
    from superinfer.executor.models.catalog import resolve_model

    with progress_bar() as bar:
        task = bar.add_task("finding the model", total=None)

        def report(stage: str, done: int, total: int) -> None:
            bar.update(task, description=stage, completed=done, total=total)

        return resolve_model(model, progress=report)


def _checked_dtype(dtype: str) -> DType:
    from superinfer.contracts.errors import UsageError

    for accepted in DTYPES:
        if dtype == accepted:
            return accepted
    raise UsageError(f"--dtype {dtype!r} is not known; accepted: {', '.join(DTYPES)}")


def _check_options(static_only: bool, random_weights: bool, time_budget: float, out_file: Path | None) -> None:
    from superinfer.contracts.errors import UsageError

    if static_only and random_weights:
        raise UsageError("--static-only runs no model, so --random-weights has no meaning with it")
    if not 0.0 < time_budget <= 3600.0:
        raise UsageError(f"--time-budget {time_budget:g}: between 0 and 3600 seconds is accepted")
    if out_file is not None and out_file.suffix != ".json":
        raise UsageError(f"--out {out_file}: a file name that ends in .json is needed")
    if out_file is not None and out_file.is_dir():
        raise UsageError(f"--out {out_file} is a directory; a file name that ends in .json is needed")


def _write(path: Path, write: Any) -> None:
    """Run `write`, which creates `path`; a failure is one clear line."""
    from superinfer.contracts.errors import UsageError

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write()
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
