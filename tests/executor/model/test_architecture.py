"""What a config.json may say, and the one line that answers one that is not supported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from superinfer.contracts.errors import ModelError
from superinfer.executor.model.architecture import load_architecture, parse_architecture
from superinfer.executor.model.weights import SafetensorsWeights

BASE: dict[str, Any] = {
    "model_type": "mistral", "vocab_size": 8, "hidden_size": 16, "intermediate_size": 8,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model_type": "gpt2"},
            "'gpt2' is not supported; supported are llama, mistral, mixtral, phi3, qwen2, qwen2_moe, ",
        ),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"rope_scaling": {"rope_type": "dynamic"}}, "rope_scaling.rope_type 'dynamic'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0}}, "mscale 1.0 is not supported"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "short_factor must be a list of 2 numbers"),
        ({"partial_rotary_factor": 0.9}, "partial_rotary_factor 0.9 of head_dim 4"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quant_method 'gptq' is not supported"),
        ({"sliding_window": -1}, "sliding_window must be a positive integer, not -1"),
        ({"sliding_window": 4, "layer_types": ["full_attention"]}, "layer_types must be a list of 2"),
        ({"model_type": "mixtral"}, "num_local_experts must be a positive integer, not None"),
        ({"model_type": "qwen3_moe", "num_experts": 2, "num_experts_per_tok": 3}, "num_experts_per_tok 3 exceeds"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps must be a number"),
        ({"hidden_size": None}, "hidden_size must be a positive integer"),
        ({"num_key_value_heads": 3}, "do not fit together"),
    ],
)
def test_an_unsupported_config_is_named_with_its_file_and_what_is_accepted(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**BASE, **change}))
    with pytest.raises(ModelError, match=message) as caught:
        load_architecture(tmp_path)
    assert str(tmp_path / "config.json") in str(caught.value)


def test_a_missing_or_broken_config_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not found"):
        load_architecture(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="not readable as JSON"):
        load_architecture(tmp_path)


def test_a_sliding_window_holds_in_the_layers_that_the_family_says() -> None:
    def windows(model_type: str, **fields: Any) -> tuple[int | None, ...]:
        config = {**BASE, "model_type": model_type, "num_hidden_layers": 4, "sliding_window": 64, **fields}
        return parse_architecture(config, {}, "x").windows

    assert windows("mistral") == (64,) * 4
    assert windows("mistral", sliding_window=None) == windows("llama") == (None,) * 4
    assert windows("qwen2") == (None,) * 4
    assert windows("qwen2", use_sliding_window=True, max_window_layers=3) == (None, None, None, 64)
    kinds = ["sliding_attention", "full_attention"] * 2
    assert windows("qwen3", use_sliding_window=True, layer_types=kinds) == (64, None, 64, None)
    experts = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 4}
    shared = {"shared_expert_intermediate_size": 4, "use_sliding_window": True, "max_window_layers": 3}
    assert windows("qwen2_moe", **experts, **shared) == (64, None, 64, None)
    assert windows("qwen3_moe", **experts, use_sliding_window=True) == (64,) * 4


def test_layers_without_experts_are_those_that_the_config_names() -> None:
    config = {**BASE, "model_type": "qwen3_moe", "num_hidden_layers": 6, "num_experts_per_tok": 1}
    config |= {"num_experts": 2, "moe_intermediate_size": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    experts = parse_architecture(config, {}, "x").experts
    assert experts is not None
    assert experts.layers == {1, 5}


def test_end_of_sequence_ids_come_from_the_generation_config_first() -> None:
    assert parse_architecture({**BASE, "eos_token_id": 2}, {}, "x").eos_token_ids == (2,)
    found = parse_architecture({**BASE, "eos_token_id": 2}, {"eos_token_id": [5, 6]}, "x")
    assert found.eos_token_ids == (5, 6)


def test_broken_weight_files_are_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors at all")
    with pytest.raises(ModelError, match="not a safetensors file"):
        SafetensorsWeights(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    with pytest.raises(ModelError, match=r"gone\.safetensors: not found"):
        SafetensorsWeights(tmp_path).get("a", (1,))
