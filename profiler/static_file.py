"""Static analysis of whatever file or folder describes a model: config, ONNX graph, Triton model, static profile."""

from __future__ import annotations

from pathlib import Path

from superinfer.contracts.errors import ModelError
from superinfer.profiler.architecture import load_architecture, stored_dtype
from superinfer.profiler.static_profile import StaticProfile, load_static, static_profile


def read_static_file(
    path: Path, dtype: str = "auto", *, prefill_tokens: int = 512, decode_context: int = 512, name: str | None = None
) -> StaticProfile:
    """Analyse the model at `path`; `dtype` "auto" is the precision it is stored in. Raises ModelError."""
    if path.suffix == ".json" and path.name != "config.json" and _is_static_profile(path):
        return load_static(path)
    architecture = load_architecture(path)
    return static_profile(
        name or (path.resolve().parent if path.is_file() else path.resolve()).name,
        architecture,
        stored_dtype(path) if dtype == "auto" else dtype,
        source=str(path / "config.json" if path.is_dir() else path),
        prefill_tokens=prefill_tokens,
        decode_context=decode_context,
    )


def _is_static_profile(path: Path) -> bool:
    try:
        load_static(path)
    except ModelError:
        return False
    return True
