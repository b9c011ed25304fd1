"""Text to token ids and back, with the model's own chat template and end-of-sequence ids."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from superinfer.contracts.errors import ModelError, UsageError
from superinfer.executor.detokenizer import IncrementalDetokenizer

__all__ = ["IncrementalDetokenizer", "Tokenizer", "load_tokenizer"]


class Tokenizer:
    """A model's fast tokenizer. `eos_token_ids` are all ids that end an answer, sorted."""

    def __init__(self, fast_tokenizer: Any, eos_token_ids: tuple[int, ...], source: str) -> None:
        self._tokenizer = fast_tokenizer
        # The library below transformers' wrapper: a fraction of the time per token, and no length warnings.
        self._backend = fast_tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self.eos_token_ids = eos_token_ids
        self.vocab_size: int = len(fast_tokenizer)
        self._source = source

    def encode(self, text: str) -> list[int]:
        """Token ids of a plain prompt, with what the tokenizer itself puts around one (often a BOS)."""
        return list(self._backend.encode(_without_surrogates(text)).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of `token_ids`; special tokens and ids beyond the vocabulary stand for no text."""
        return str(self._backend.decode(list(token_ids), skip_special_tokens=True))

    @property
    def has_chat_template(self) -> bool:
        """True where `apply_chat_template` can be used."""
        return bool(self._tokenizer.chat_template)

    def render_chat(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt text of a conversation, ending where the assistant's next answer begins.

        Raises UsageError where the model has no chat template or its template refuses these messages.
        """
        if not self.has_chat_template:
            raise UsageError(
                f"model {self._source} has no chat template, so it cannot take chat messages; "
                "send a plain prompt to /v1/completions instead"
            )
        if not messages:
            raise UsageError("messages is empty; expected at least one message with a role and content")
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
                )
            )
        # A template is a program of the model's author: it raises what it likes.
        except Exception as error:
            raise UsageError(
                f"the chat template of model {self._source} refused the messages: {error}; "
                "expected a list of {role, content} with text content"
            ) from None

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of `render_chat`; the template writes all special tokens itself, so none are added."""
        text = _without_surrogates(self.render_chat(messages))
        return list(self._backend.encode(text, add_special_tokens=False).ids)


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of the model in `directory`. Raises ModelError when it is missing or damaged."""
    from transformers import AutoTokenizer

    if not any((directory / name).exists() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise ModelError(
            f"model directory {directory} has no tokenizer.json; copy the model's tokenizer files there. "
            "Without them it can still be profiled: superinfer profile MODEL, with or without --static"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(directory), use_fast=True, local_files_only=True, trust_remote_code=False
        )
    # Which classes come out of here depends on the library's version and on what is damaged.
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelError(f"the tokenizer in {directory} cannot be loaded: {reason}") from None
    if not tokenizer.is_fast:
        raise ModelError(f"the tokenizer in {directory} is not a fast one; expected a tokenizer.json")
    eos = _eos_token_ids(directory, tokenizer.eos_token_id)
    return Tokenizer(tokenizer, eos_token_ids=eos, source=directory.name)


def _eos_token_ids(directory: Path, tokenizer_eos: int | None) -> tuple[int, ...]:
    """All ids named by generation_config.json, config.json and the tokenizer: models differ in which is right."""
    found = set() if tokenizer_eos is None else {int(tokenizer_eos)}
    for name in ("generation_config.json", "config.json"):
        file = directory / name
        if not file.exists():
            continue
        try:
            value = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
        except (ValueError, AttributeError) as error:
            raise ModelError(f"{file} cannot be read as a JSON object: {error}") from None
        ids = value if isinstance(value, list) else [value]
        found.update(item for item in ids if isinstance(item, int))
    return tuple(sorted(found))


def _without_surrogates(text: str) -> str:
    """Lone surrogates (JSON allows them, UTF-8 does not) become the replacement character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
