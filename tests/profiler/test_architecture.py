"""Architectures read from the public config values of each supported family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from superinfer.contracts.errors import ModelError
from superinfer.profiler.architecture import (
    SUPPORTED_MODEL_TYPES,
    architecture_from_config,
    load_architecture,
)

from .small_config import SMALL_LLAMA

LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"head_dim": 32, "sliding_window": 128},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 32},
    "phi3": {"pad_token_id": 0},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 96,
    },
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 32},
    "deepseek_v2": {**LATENT, "q_lora_rank": None, "first_k_dense_replace": 1},
    "deepseek_v3": {**LATENT, "q_lora_rank": 48, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1},
}
OWN_CODE = ("phi3small",)
"""Families whose model comes with its checkpoint and not with transformers."""


@pytest.mark.parametrize(
    ("model_type", "extra"),
    [
        *FAMILIES.items(),
        ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        ("qwen3", {"attention_bias": True}),
        ("qwen3_moe", {**FAMILIES["qwen3_moe"], "num_hidden_layers": 4, "decoder_sparse_step": 2}),
        ("qwen2_moe", {**FAMILIES["qwen2_moe"], "mlp_only_layers": [1], "qkv_bias": False}),
        ("deepseek_v3", {**FAMILIES["deepseek_v3"], "attention_bias": True}),
    ],
)
def test_parameters_equal_those_of_the_transformers_model(model_type: str, extra: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = {**SMALL_LLAMA, "model_type": model_type, **extra}
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))
    expected = sum(parameter.numel() for parameter in model.parameters())
    assert architecture_from_config(config).parameters == expected


def test_every_supported_family_is_compared_with_transformers() -> None:
    assert tuple(sorted((*FAMILIES, *OWN_CODE))) == SUPPORTED_MODEL_TYPES


LATENT_FAMILIES = ("deepseek_v2", "deepseek_v3")


@pytest.mark.parametrize("model_type", [name for name in FAMILIES if name not in LATENT_FAMILIES])
def test_fields_left_out_take_the_defaults_of_the_family(model_type: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = {**SMALL_LLAMA, "num_attention_heads": 32, "hidden_size": 1024, "model_type": model_type}
    del config["num_key_value_heads"]
    reference = transformers.AutoConfig.for_model(**config)
    architecture = architecture_from_config(config)
    assert architecture.kv_heads == reference.num_key_value_heads
    assert architecture.head_dim == (getattr(reference, "head_dim", None) or 1024 // 32)
    if model_type == "mixtral":
        assert architecture.experts == reference.num_local_experts
        assert architecture.experts_per_token == reference.num_experts_per_tok


def test_an_unknown_model_type_is_refused_with_the_supported_ones() -> None:
    with pytest.raises(ModelError) as caught:
        architecture_from_config({**SMALL_LLAMA, "model_type": "gpt2"}, source="some/config.json")
    message = str(caught.value)
    assert "some/config.json" in message
    assert "gpt2" in message
    assert all(name in message for name in SUPPORTED_MODEL_TYPES)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", None),
        ("vocab_size", "many"),
        ("num_hidden_layers", 0),
        ("intermediate_size", -1),
        ("num_attention_heads", True),
        ("num_key_value_heads", 3),
        ("num_experts_per_tok", 9),
        pytest.param("vocab_size", 10**400, id="vocab_size of 400 digits"),
        ("num_hidden_layers", 10**30),
    ],
)
def test_a_missing_or_wrong_field_is_named(key: str, value: Any) -> None:
    with pytest.raises(ModelError, match=key):
        architecture_from_config({**SMALL_LLAMA, "model_type": "mixtral", key: value})


def test_a_window_counts_only_where_the_model_uses_it() -> None:
    config = {**SMALL_LLAMA, "sliding_window": 100}
    assert architecture_from_config({**config, "model_type": "mistral"}).visible_keys(5000) == 100
    assert architecture_from_config({**config, "model_type": "qwen2"}).visible_keys(5000) == 5000
    uses = {**config, "model_type": "qwen2", "use_sliding_window": True}
    assert architecture_from_config(uses).visible_keys(5000) == 5000  # from layer 28 on
    assert architecture_from_config({**uses, "max_window_layers": 0}).visible_keys(5000) == 100
    assert architecture_from_config({**uses, "max_window_layers": 1}).visible_keys(5000) == (100 + 5000) / 2
    assert architecture_from_config({**uses, "max_window_layers": 1}).visible_keys(60) == 60


def test_a_directory_and_its_config_file_load_alike(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SMALL_LLAMA, "model_type": "llama"}))
    assert load_architecture(tmp_path) == load_architecture(tmp_path / "config.json")


@pytest.mark.parametrize("text", [None, "{", "[1]", b"\xff\xfe", pytest.param("[" * 100_000, id="nested too deeply")])
def test_an_unreadable_config_is_one_error_that_names_the_file(tmp_path: Path, text: str | bytes | None) -> None:
    file = tmp_path / "config.json"
    if isinstance(text, str):
        file.write_text(text)
    elif text is not None:
        file.write_bytes(text)
    with pytest.raises(ModelError, match=r"config\.json"):
        load_architecture(tmp_path)
