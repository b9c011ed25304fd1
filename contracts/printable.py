"""Values as errors show them: on one line, and not too long."""

from __future__ import annotations

import json

SHOWN_CHARACTERS = 60


def printable(text: str) -> str:
    """`text` on one line, whatever it holds."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def shown(value: object) -> str:
    """A value as it would be written in JSON, cut to a length that fits a line."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        text = repr(type(value).__name__)
    text = printable(text)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"
