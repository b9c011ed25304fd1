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
        ({"model_type": "gpt2"}, "'gpt2' is not supported; supported are llama, mistral, qwen2"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope scaling 'yarn'"),
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


def test_a_sliding_window_caps_the_length() -> None:
    assert parse_architecture({**BASE, "sliding_window": 1024}, {}, "x").max_positions == 1024
    assert parse_architecture({**BASE, "sliding_window": None}, {}, "x").max_positions == 4096
    qwen = {**BASE, "model_type": "qwen2", "sliding_window": 1024}
    assert parse_architecture({**qwen, "use_sliding_window": False}, {}, "x").max_positions == 4096
    assert parse_architecture({**qwen, "use_sliding_window": True}, {}, "x").max_positions == 1024


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
