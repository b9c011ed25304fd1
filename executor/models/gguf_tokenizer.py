"""The byte-level BPE tokenizer inside a GGUF file → tokenizer.json and tokenizer_config.json."""

from __future__ import annotations

import json
from pathlib import Path

from superinfer.contracts.errors import ModelError
from superinfer.executor.models.gguf_fields import GGUFFields

CONTROL_TOKEN = 3
"""GGUF's token type for tokens that stand for no text, such as <|im_end|>."""

SPLITS_DIGITS = {"smollm"}
"""Values of tokenizer.ggml.pre that take every digit by itself before byte-level splitting."""


def write_tokenizer(fields: GGUFFields, directory: Path) -> None:
    """Write the fast tokenizer, its special tokens and its chat template into `directory`."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind = fields.text("tokenizer.ggml.model")
    splitting = fields.text("tokenizer.ggml.pre")
    if kind != "gpt2" or splitting not in SPLITS_DIGITS:
        raise ModelError(f"the GGUF file has a {kind!r}/{splitting!r} tokenizer; expected 'gpt2'/'smollm'")
    tokens = fields.texts("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in fields.texts("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = fields.numbers("tokenizer.ggml.token_type")
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, token_type in zip(tokens, types, strict=True)
            if token_type == CONTROL_TOKEN
        ]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(fields.number("llama.context_length")),
        "bos_token": tokens[int(fields.number("tokenizer.ggml.bos_token_id"))],
        "eos_token": tokens[int(fields.number("tokenizer.ggml.eos_token_id"))],
        "pad_token": tokens[int(fields.number("tokenizer.ggml.padding_token_id"))],
        "unk_token": tokens[int(fields.number("tokenizer.ggml.unknown_token_id"))],
        "chat_template": fields.text("tokenizer.chat_template"),
    }
    (directory / "tokenizer_config.json").write_text(
        json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
