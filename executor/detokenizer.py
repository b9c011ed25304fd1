"""Output tokens to text as they come: no torn characters, no piece of a stop string."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
WINDOW_TOKENS = 8
"""Tokens decoded again before new ones, so that word-initial spaces and torn bytes come out as in the whole."""


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
        self._context: list[int] = []
        self._context_text = ""
        self._pending: list[int] = []
        self._held = ""
        self.stopped = False
        self.matched_stop: str | None = None

    def push(self, token_ids: Iterable[int]) -> str:
        """Take new tokens; return the text that is now certain."""
        released: list[str] = []
        for token_id in token_ids:
            if self.stopped:
                break
            self._pending.append(token_id)
            released.append(self._release(self._decode_pending(final=False)))
        return "".join(released)

    def finish(self) -> str:
        """No more tokens come: return what was held back, torn bytes as replacement characters."""
        if self.stopped:
            return ""
        text = self._release(self._decode_pending(final=True))
        rest, self._held = self._held, ""
        return text + rest

    def _decode_pending(self, *, final: bool) -> str:
        """New complete text of the pending tokens; empty while their last character is torn."""
        if not self._pending:
            return ""
        text = self._tokenizer.decode(self._context + self._pending)
        if not final and text.endswith(REPLACEMENT):
            return ""
        new_text = text[len(self._context_text) :]
        self._context = (self._context + self._pending)[-WINDOW_TOKENS:]
        self._context_text = self._tokenizer.decode(self._context)
        self._pending = []
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
            self._pending = []
            return text[:position]
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
