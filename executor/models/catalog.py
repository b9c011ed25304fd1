"""From the name a user gives to a model directory: a known model, a local directory, or a hub id."""

from __future__ import annotations

import re
from pathlib import Path

from superinfer.contracts.errors import ModelError
from superinfer.executor.models import gguf_wheel, hub, local
from superinfer.executor.models.source import ModelSource, Progress, no_progress

KNOWN_MODELS: dict[str, gguf_wheel.WheelModel] = {model.name: model for model in (gguf_wheel.SMOLLM2_135M,)}

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def resolve_model(name: str, *, progress: Progress | None = None) -> ModelSource:
    """Find the model called `name`, fetching and converting it into the user's cache on first use.

    A known name wins over a directory of the same name (write ./NAME for the directory), and an existing
    directory over a hub id. Raises ModelError with what to do.
    """
    report = progress or no_progress
    if name in KNOWN_MODELS:
        return gguf_wheel.resolve(KNOWN_MODELS[name], report)
    if not name.strip() or "\0" in name:
        raise ModelError(f"model {name!r} is not a name; expected {_accepted()}")
    path = Path(name).expanduser()
    if path.exists():
        return local.resolve(path)
    if HUB_ID.fullmatch(name):
        return hub.resolve(name, report)
    if "/" in name:
        raise ModelError(f"model directory {name} does not exist; expected {_accepted()}")
    raise ModelError(f"model {name!r} is not known; expected {_accepted()}")


def _accepted() -> str:
    known = ", ".join(sorted(KNOWN_MODELS))
    return f"one of: {known}; a directory with config.json; or a Hugging Face hub id such as org/name"
