"""Typed reading of a GGUF file's metadata."""

from __future__ import annotations

from typing import Any

from superinfer.contracts.errors import ModelError


class GGUFFields:
    """The key-value metadata of an open `gguf.GGUFReader`. A missing key raises ModelError."""

    def __init__(self, reader: Any) -> None:
        self._fields = reader.fields
        self._texts: dict[str, list[str]] = {}

    def _field(self, key: str) -> Any:
        if key not in self._fields:
            raise ModelError(f"the GGUF file lacks the metadata key {key!r}")
        return self._fields[key]

    def __contains__(self, key: str) -> bool:
        return key in self._fields

    def number(self, key: str) -> float:
        """A scalar, as float."""
        field = self._field(key)
        return float(field.parts[field.data[0]][0])

    def text(self, key: str) -> str:
        """A string."""
        return self.texts(key)[0]

    def texts(self, key: str) -> list[str]:
        """An array of strings; a single string is an array of one."""
        if key not in self._texts:
            field = self._field(key)
            self._texts[key] = [bytes(field.parts[index]).decode("utf-8") for index in field.data]
        return self._texts[key]

    def numbers(self, key: str) -> list[int]:
        """An array of integers."""
        field = self._field(key)
        return [int(field.parts[index][0]) for index in field.data]
