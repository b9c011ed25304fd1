"""A Hugging Face model directory on this machine, checked before anything is loaded from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from superinfer.contracts.errors import ModelError
from superinfer.executor.models.source import ModelSource

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")


def resolve(path: Path) -> ModelSource:
    """The model in directory `path`. Raises ModelError that says what is missing."""
    if not path.is_dir():
        raise ModelError(f"model {path} is a file; expected a directory with config.json and *.safetensors")
    directory = path.resolve()
    read_json_object(directory / "config.json")
    return ModelSource(name=directory.name, directory=directory, has_weights=_has_weights(directory))


def read_json_object(file: Path) -> dict[str, Any]:
    """The JSON object in `file`. Raises ModelError when it is missing or malformed."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(
            f"model directory {file.parent} has no {file.name}; expected a Hugging Face model directory"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{file} cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{file} holds a {type(value).__name__}; expected a JSON object")
    return value


def _has_weights(directory: Path) -> bool:
    """True where all of the *.safetensors are present; pickled weights alone are refused, never loaded."""
    present = {file.name for file in directory.glob("*.safetensors")}
    index = directory / "model.safetensors.index.json"
    if index.exists():
        weight_map = read_json_object(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ModelError(f"{index} has no weight_map; download the model again")
        if missing := sorted({str(name) for name in weight_map.values()} - present):
            raise ModelError(f"model directory {directory} lacks {missing[0]}, which {index.name} names")
    if present:
        return True
    pickled = sorted(file.name for file in directory.iterdir() if file.suffix in PICKLE_SUFFIXES)
    if pickled:
        raise ModelError(
            f"model directory {directory} has its weights only in {pickled[0]}, a pickle, which is never loaded "
            "because it can run code; convert it to model.safetensors (transformers: model.save_pretrained)"
        )
    return False
