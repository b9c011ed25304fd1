"""`superinfer profile`: what a model costs, from its config alone and measured on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from superinfer.cli.console import err, out, progress_bar

if TYPE_CHECKING:
    from rich.console import Console

    from superinfer.executor.config import DType
    from superinfer.executor.models.source import ModelSource
    from superinfer.profiler.store import ModelProfile

DTYPES: tuple[DType, ...] = ("auto", "float32", "bfloat16", "int8")
BUSY_SHARE = 0.1


def profile(
    model: Annotated[
        str | None,
        typer.Argument(
            help="Known model name, local directory, config.json or hub id; with --static also a name of the feature "
            "library, an ONNX graph or a Triton config.pbtxt."
        ),
    ] = None,
    static: Annotated[
        bool, typer.Option("--static", "--static-only", help="From its shapes alone: no weights, nothing is run.")
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(help="With --static: predict its times on this device type (A100-SXM4-80GB, …), or on cpu."),
    ] = None,
    tensor_parallel: Annotated[int, typer.Option(min=1, max=1024, help="With --device: devices together.")] = 1,
    prompt_tokens: Annotated[
        int, typer.Option(min=1, max=10_000_000, help="With --static: prompt that the arithmetic is counted for.")
    ] = 512,
    context: Annotated[
        int, typer.Option(min=1, max=10_000_000, help="With --static: tokens before a decoded one.")
    ] = 512,
    list_models: Annotated[bool, typer.Option("--list", help="Show the feature library.")] = False,
    compare: Annotated[
        tuple[str, str] | None, typer.Option(help="Two models, of whatever kind --static takes, side by side.")
    ] = None,
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Measure with random weights, from the config.")
    ] = False,
    dtype: Annotated[
        str,
        typer.Option(
            help="auto, float32, bfloat16 or int8 (weights alone); auto is what a worker takes on this CPU. With "
            "--static also float16 and float8; auto is what the weights are stored in."
        ),
    ] = "auto",
    time_budget: Annotated[
        float, typer.Option(help="Seconds for the measurement, loading the model not counted.")
    ] = 75.0,
    out_file: Annotated[
        Path | None,
        typer.Option("--out", help="Feature file, a picture beside it. Default: the profile cache; none for --static."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the features as JSON, nothing else.")] = False,
) -> None:
    """Print a model's four dimensions, measure it here, write its feature file and a picture beside it."""
    from superinfer.cli.profile_static import STATIC_DTYPES, compare_models, list_library, profile_static
    from superinfer.contracts.errors import UsageError

    is_static = static or compare is not None
    checked_dtype = _checked_dtype(dtype, STATIC_DTYPES if is_static else DTYPES)
    _check_options(is_static, random_weights, time_budget, out_file)
    if device is not None and not static:
        raise UsageError(f"--device {device}: is a prediction; it needs --static")
    if tensor_parallel > 1 and device is None:
        raise UsageError(
            f"--tensor-parallel {tensor_parallel}: is how many devices predict together; it needs --device"
        )
    if list_models or compare is not None:
        alone = "--list" if list_models else "--compare"
        if model is not None or out_file is not None:
            raise UsageError(f"{alone} only prints: neither MODEL ({model}) nor --out is accepted with it")
    if list_models:
        list_library(as_json=as_json)
    elif compare is not None:
        compare_models(*compare, dtype, as_json=as_json)
    elif model is None:
        raise UsageError("MODEL is missing: a name, a directory, a config.json or a hub id; --list shows ready models")
    elif static:
        profile_static(
            model,
            dtype,
            device=device,
            tensor_parallel=tensor_parallel,
            prefill_tokens=prompt_tokens,
            decode_context=context,
            out_file=out_file,
            as_json=as_json,
        )
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

    source.check_weights(random_weights=random_weights)
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
        f"profiling {source.name} ({reason}); about a minute and a half, kept in {path}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    _write(path, lambda: None)
    measured = _measure(source, dtype, random_weights=random_weights, log_path=_log_path(path))
    _write(path, lambda: save_profile(path, measured))
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
    from superinfer.contracts.errors import UsageError
    from superinfer.executor.profile_model import profile_model
    from superinfer.profiler.measure import DEFAULT_BUDGET_S

    with progress_bar() as bar:
        task = bar.add_task("loading the model", total=None)

        def report(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        try:
            result = profile_model(
                source,
                dtype,
                random_weights=random_weights,
                budget_s=DEFAULT_BUDGET_S if time_budget_s is None else time_budget_s,
                progress=report,
                log_path=log_path,
            )
        except OSError as error:
            raise UsageError(f"{log_path} cannot be written: {error.strerror}") from None
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
    from superinfer.cli.profile_tables import measured_tables
    from superinfer.cli.static_tables import static_tables
    from superinfer.executor.profile_model import THREADS, held_dtypes, resolve_dtype
    from superinfer.profiler.architecture import load_architecture
    from superinfer.profiler.device import device_name
    from superinfer.profiler.static import static_features
    from superinfer.profiler.store import profile_path, save_profile

    source = _resolve(model)
    if not random_weights:
        _check_weights(source)
    resolved = resolve_dtype(dtype)
    path = out_file or profile_path(source.name, device_name(), resolved, THREADS)
    if not as_json:
        computed, held = held_dtypes(source, dtype)
        features = static_features(load_architecture(source.directory), computed, weight_dtype=held)
        out.print(static_tables(features))
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


def _check_weights(source: ModelSource) -> None:
    """ModelError where the weights are not whole, with what can be done without them."""
    from superinfer.contracts.errors import ModelError
    from superinfer.profiler.safetensors_files import stored_weights

    weights = stored_weights(source.directory)
    if weights is not None and weights.damage is not None:
        raise ModelError(
            f"{source.directory}: {weights.damage}; download it again. Without its weights, --static computes what its "
            "config gives, and --random-weights measures its shapes"
        )


def _print_json(value: object) -> None:
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=1).decode())


def _resolve(model: str) -> ModelSource:
    from superinfer.contracts.errors import ModelError
    from superinfer.executor.models.catalog import resolve_model
    from superinfer.profiler.known_architectures import known_models

    with progress_bar() as bar:
        task = bar.add_task("finding the model", total=None)

        def report(stage: str, done: int, total: int) -> None:
            bar.update(task, description=stage, completed=done, total=total)

        try:
            return resolve_model(model, progress=report)
        except ModelError as error:
            if model.lower() not in known_models():
                raise
            raise ModelError(
                f"{error}. Its shapes are known: add --static for the figures that follow from them"
            ) from None


def _checked_dtype(dtype: str, accepted: Sequence[str]) -> Any:
    from superinfer.contracts.errors import UsageError

    if dtype not in accepted:
        raise UsageError(f"--dtype {dtype!r} is not known; accepted: {', '.join(accepted)}")
    return dtype


def _check_options(static_only: bool, random_weights: bool, time_budget: float, out_file: Path | None) -> None:
    from superinfer.contracts.errors import UsageError

    if static_only and random_weights:
        raise UsageError("--static runs no model, so --random-weights has no meaning with it")
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
