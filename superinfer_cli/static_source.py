"""From what a user names to a static analysis: a library name, a config, a graph, a Triton model, a hub id."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from superinfer.profiler.static_profile import StaticProfile


def find_static(
    model: str, dtype: str = "auto", *, prefill_tokens: int = 512, decode_context: int = 512
) -> StaticProfile:
    """Analyse `model`. Raises ModelError that says what is accepted, or what can still be computed.

    A path that exists wins over a name of the library (write the name to be sure), and that over a hub id, of which
    the config alone is fetched.
    """
    from msgspec import structs

    from superinfer.profiler.triton_model import CONFIG_NAME, triton_reference

    path = Path(model).expanduser()
    if path.suffix != Path(CONFIG_NAME).suffix and not (path / CONFIG_NAME).exists():
        return _find_model(model, dtype, prefill_tokens, decode_context)
    # What an entry names may be its own folder, whose config.json then counts, not its config.pbtxt again.
    served = _find_model(triton_reference(path), dtype, prefill_tokens, decode_context)
    folder = path.resolve().parent if path.is_file() else path.resolve()
    return structs.replace(served, model=folder.name)


def _find_model(model: str, dtype: str, prefill_tokens: int, decode_context: int) -> StaticProfile:
    from superinfer.profiler.feature_library import LIBRARY_DTYPE
    from superinfer.profiler.known_architectures import known_models
    from superinfer.profiler.static_file import read_static_file
    from superinfer.profiler.static_profile import static_profile

    path = Path(model).expanduser()
    known = known_models().get(model.lower())
    if known is not None:
        return static_profile(
            model.lower(),
            known.architecture,
            LIBRARY_DTYPE if dtype == "auto" else dtype,
            source=known.source,
            published_parameters=known.published_parameters,
            notes=list(known.notes),
            prefill_tokens=prefill_tokens,
            decode_context=decode_context,
        )
    if not path.exists():
        path = _config_directory(model)
    return read_static_file(
        path,
        dtype,
        prefill_tokens=prefill_tokens,
        decode_context=decode_context,
        name=None if Path(model).expanduser().exists() else model,
    )


def _config_directory(model: str) -> Path:
    """The folder of a model that has to be looked up by its name."""
    from superinfer.contracts.errors import ModelError
    from superinfer.executor.models.catalog import HUB_ID, KNOWN_MODELS, resolve_model
    from superinfer.executor.models.hub import resolve_config
    from superinfer.profiler.known_architectures import known_models

    if Path(model).suffix in (".json", ".onnx", ".pbtxt"):
        raise ModelError(f"{model}: there is no such file")
    if model not in KNOWN_MODELS and HUB_ID.fullmatch(model):
        return resolve_config(model)
    try:
        return resolve_model(model).directory
    except ModelError as error:
        kinds = "a config.json, an ONNX graph, a config.pbtxt"
        raise ModelError(f"{error}; with --static also {kinds}, or one of: {', '.join(known_models())}") from None
