"""Static analysis of whatever file or folder describes a model: config, ONNX graph, static profile."""

from __future__ import annotations

from pathlib import Path

from superinfer.contracts.errors import ModelError
from superinfer.profiler.architecture import load_architecture, stored_dtype
from superinfer.profiler.decoder_shapes import ModelArchitecture
from superinfer.profiler.safetensors_files import stored_weights
from superinfer.profiler.static_profile import StaticProfile, load_static, static_profile

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


def read_static_file(
    path: Path, dtype: str = "auto", *, prefill_tokens: int = 512, decode_context: int = 512, name: str | None = None
) -> StaticProfile:
    """Analyse the model at `path`; `dtype` "auto" is the precision it is stored in.

    ModelError says what is wrong with it, and what can be computed all the same.
    """
    if path.suffix == ".json" and path.name != "config.json" and _is_static_profile(path):
        return load_static(path)
    graph = _graph_file(path)
    if graph is not None:
        architecture, stored, notes = _read_graph(graph)
        file, own_name = graph, graph.stem if path.is_file() else path.resolve().name
    else:
        file = path / "config.json" if path.is_dir() else path
        architecture, stored, notes = *_read_config(path), _defects(file.parent)
        own_name = (path.resolve().parent if path.is_file() else path.resolve()).name
    return static_profile(
        name or own_name,
        architecture,
        stored if dtype == "auto" else dtype,
        source=str(file),
        notes=notes,
        prefill_tokens=prefill_tokens,
        decode_context=decode_context,
    )


def _read_config(path: Path) -> tuple[ModelArchitecture, str]:
    try:
        return load_architecture(path), stored_dtype(path)
    except ModelError as error:
        weights = stored_weights(path if path.is_dir() else path.parent)
        if weights is None:
            raise ModelError(
                f"{error}; nothing can be computed from this config alone, but parameters and bytes could be from "
                "*.safetensors beside it, and all figures from an ONNX graph"
            ) from None
        raise ModelError(
            f"{error}; still known from its safetensors: {weights.parameters:,} parameters, "
            f"{weights.tensor_bytes / 1e9:.3g} GB of weights"
        ) from None


def _read_graph(file: Path) -> tuple[ModelArchitecture, str, list[str]]:
    from superinfer.profiler.onnx_decoder import read_onnx_decoder

    decoder = read_onnx_decoder(file)
    counted = decoder.counted_parameters
    notes = [f"found in the graph: {decoder.architecture.layers} layers; its weights hold {counted:,} parameters"]
    return decoder.architecture, decoder.dtype, notes


def _defects(directory: Path) -> list[str]:
    """What would keep the model from running; its static figures do not need it."""
    notes = []
    try:
        weights = stored_weights(directory)
    except ModelError as error:
        return [str(error)]
    if weights is not None:
        if weights.damage is not None:
            notes.append(f"{weights.damage}; it cannot be run or measured, the figures come from the config and hold")
        if not any((directory / file).exists() for file in TOKENIZER_FILES):
            notes.append("it has no tokenizer: it can be profiled, but not served or benched with text")
    return notes


def _graph_file(path: Path) -> Path | None:
    """The ONNX graph that a path is or holds; a config.json beside it says more."""
    if path.suffix == ".onnx":
        return path
    if not path.is_dir() or (path / "config.json").exists():
        return None
    graphs = sorted(path.glob("*.onnx"))
    return graphs[0] if graphs else None


def _is_static_profile(path: Path) -> bool:
    try:
        load_static(path)
    except ModelError:
        return False
    return True
