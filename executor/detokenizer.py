"""Output tokens to text as they come: no torn characters, no piece of a stop string."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
WINDOW_TOKENS = 16
"""Tokens decoded again with each new one, so that word-initial spaces and torn bytes come out as in the whole."""
TRIM_AT_TOKENS = 32
TORN_CHARACTERS = 8
"""More replacement characters than this at the end are wrong bytes, not a character that is still to come."""


class Decoder(Protocol):
    """What turns token ids into text."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of `token_ids`."""
        ...


class IncrementalDetokenizer:
    """Streams the text of one output; what `push` and `finish` return, joined, is `decode` of all its tokens,
    cut before the first stop string.

    A character whose bytes are not complete is held back, and so is text that may be the start of a stop
    string. After a stop string `stopped` is True, `matched_stop` names it, and further tokens are dropped.
    """

    def __init__(self, tokenizer: Decoder, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(text for text in stop if text)
        self._window: list[int] = []
        self._window_text = ""
        self._taken = 0
        self._held = ""
        self.stopped = False
        self.matched_stop: str | None = None

    def push(self, token_ids: Iterable[int]) -> str:
        """Take new tokens; return the text that is now certain."""
        released: list[str] = []
        for token_id in token_ids:
            if self.stopped:
                break
            released.append(self._release(self._decode(token_id)))
        return "".join(released)

    def finish(self) -> str:
        """No more tokens come: return what was held back, torn bytes as replacement characters."""
        if self.stopped:
            return ""
        torn = self._window_text[self._taken :]
        self._taken = len(self._window_text)
        text = self._release(torn)
        rest, self._held = self._held, ""
        return text + rest

    def _decode(self, token_id: int) -> str:
        """The characters that `token_id` completes. `_taken` counts those of the window already returned."""
        text = self._tokenizer.decode([*self._window, token_id])
        if text == self._window_text and not text.endswith(REPLACEMENT):
            return ""  # a token without text would push those with text out of the window
        self._window.append(token_id)
        self._window_text = text
        certain = _certain_length(text)
        new_text = text[self._taken : certain]
        self._taken = max(self._taken, certain)
        if len(self._window) > TRIM_AT_TOKENS:
            uncertain = len(text) - self._taken
            self._window = self._window[-WINDOW_TOKENS:]
            self._window_text = self._tokenizer.decode(self._window)
            self._taken = len(self._window_text) - uncertain
        return new_text

    def _release(self, new_text: str) -> str:
        """Add to the held text, look for stop strings, and let go of what can no longer be part of one."""
        if not new_text:
            return ""
        text = self._held + new_text
        matches = [(position, stop) for stop in self._stop if (position := text.find(stop)) >= 0]
        if matches:
            position, self.matched_stop = min(matches, key=lambda match: (match[0], -len(match[1])))
            self.stopped = True
            self._held = ""
            return text[:position]
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _certain_length(text: str) -> int:
    """Characters of `text` that no later token can change."""
    certain = len(text.rstrip(REPLACEMENT))
    return certain if len(text) - certain <= TORN_CHARACTERS else len(text) - TORN_CHARACTERS // 2


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
