"""Reading fields of a `config.json`, with errors that name the file, the field and the value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from superinfer.contracts.errors import ModelError


class ConfigFields:
    """A parsed config and the name of its file; every reading method raises ModelError."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values = values
        self.source = source

    def error(self, message: str) -> ModelError:
        """A ModelError that begins with the file's name."""
        return ModelError(f"{self.source}: {message}")

    def unsupported(self, field: str, accepted: tuple[str, ...]) -> ModelError:
        """The error for a value that this decoder cannot run."""
        return self.error(f"{field} {self.values.get(field)!r} is not supported; supported are {', '.join(accepted)}")

    def size(self, field: str, default: int | None = None) -> int:
        """A positive integer; `default` where the field is missing or null."""
        value = self.values.get(field)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.error(f"{field} must be a positive integer, not {value!r}")
        return value

    def number(self, field: str, default: float) -> float:
        """A number; `default` where the field is missing or null."""
        value = self.values.get(field)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(f"{field} must be a number, not {value!r}")
        return float(value)

    def flag(self, field: str, default: bool = False) -> bool:
        """True or false; `default` where the field is missing or null."""
        value = self.values.get(field)
        return default if value is None else bool(value)


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a model's file. Raises ModelError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path}: not found; a model directory holds a config.json") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path}: must hold a JSON object")
    return content
