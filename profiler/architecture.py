"""A decoder's architecture, read from its Hugging Face config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from superinfer.contracts.errors import ModelError
from superinfer.profiler.config_families import SUPPORTED_MODEL_TYPES as SUPPORTED_MODEL_TYPES
from superinfer.profiler.config_families import read_family
from superinfer.profiler.decoder_shapes import ModelArchitecture as ModelArchitecture
from superinfer.profiler.tensorrt_llm import as_hugging_face, is_tensorrt_llm


def architecture_from_config(config: Mapping[str, Any], *, source: str = "config.json") -> ModelArchitecture:
    """The architecture that a Hugging Face config describes; ModelError names a missing or wrong field."""
    model_type = config.get("model_type")
    if model_type not in SUPPORTED_MODEL_TYPES:
        raise ModelError(
            f"{source}: model_type {model_type!r} is not supported; supported: {', '.join(SUPPORTED_MODEL_TYPES)}"
        )
    assert isinstance(model_type, str)
    return read_family(model_type, config, source)


def load_architecture(path: Path) -> ModelArchitecture:
    """The architecture of a model directory, or of a config.json itself."""
    file = _config_file(path)
    return architecture_from_config(_load_config(file), source=str(file))


def stored_dtype(path: Path) -> str:
    """The precision that a model's weights are stored in, by its config; bfloat16 where it does not say."""
    config = _load_config(_config_file(path))
    quantization = config.get("quantization_config")
    if isinstance(quantization, dict) and quantization.get("quant_method") == "fp8":
        return "float8"
    stored = config.get("dtype") or config.get("torch_dtype")
    return stored if stored in ("float32", "float16") else "bfloat16"


def _config_file(path: Path) -> Path:
    return path / "config.json" if path.is_dir() else path


def _load_config(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{file} does not exist; a Hugging Face model directory holds a config.json") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{file} cannot be read as JSON: {error}") from None
    if not isinstance(config, dict):
        raise ModelError(f"{file} holds {type(config).__name__}, not a JSON object")
    return as_hugging_face(config) if is_tensorrt_llm(config) else config
