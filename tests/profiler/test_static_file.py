"""Models that are damaged, incomplete or unknown: what is wrong, and what can still be computed."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from superinfer.contracts.errors import ModelError
from superinfer.profiler.architecture import load_architecture, stored_dtype
from superinfer.profiler.safetensors_files import stored_weights
from superinfer.profiler.static_file import read_static_file

from .small_config import SMALL_LLAMA


def write_model(folder: Path, config: dict[str, Any], *, tokenizer: bool = True) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if tokenizer:
        (folder / "tokenizer.json").write_text("{}")
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "a": {"dtype": "BF16", "shape": [10, 20], "data_offsets": [0, 400]},
            "b": {"dtype": "F32", "shape": [25], "data_offsets": [400, 500]},
        }
    ).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(500))
    return folder


def truncate(file: Path, size: int) -> None:
    file.write_bytes(file.read_bytes()[:size])


def test_headers_tell_parameters_and_bytes(tmp_path: Path) -> None:
    weights = stored_weights(write_model(tmp_path, SMALL_LLAMA))
    assert weights is not None
    assert (weights.parameters, weights.tensor_bytes, weights.damage) == (225, 500, None)
    assert stored_weights(tmp_path / "..") is None


def test_truncated_weights_leave_the_figures_of_the_config(tmp_path: Path) -> None:
    file = write_model(tmp_path, SMALL_LLAMA) / "model.safetensors"
    whole = file.stat().st_size
    truncate(file, whole - 1)
    profile = read_static_file(tmp_path)
    assert profile.static.compute.parameters == load_architecture(tmp_path).parameters
    [note] = profile.notes
    assert f"model.safetensors is truncated: it has {whole - 1:,} of {whole:,} bytes" in note
    assert "figures come from the config and hold" in note


@pytest.mark.parametrize("size", [0, 4, 8, 60])
def test_weights_that_end_within_their_header_leave_them_too(tmp_path: Path, size: int) -> None:
    truncate(write_model(tmp_path, SMALL_LLAMA) / "model.safetensors", size)
    [note] = read_static_file(tmp_path).notes
    assert "is truncated or no safetensors file" in note
    with pytest.raises(ModelError, match="--static"):
        stored_weights(tmp_path)


@pytest.mark.parametrize(
    "header",
    [
        "[1]",
        '{"a": "b"}',
        '{"a": {"shape": [1]}}',
        '{"a": {"shape": [-5], "data_offsets": [0, 8]}}',
        pytest.param("[" * 100_000, id="nested too deeply"),
    ],
)
def test_a_header_that_describes_no_tensors_is_one_error_that_names_the_file(tmp_path: Path, header: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header.encode())
    with pytest.raises(ModelError, match=r"model\.safetensors is truncated or no safetensors file"):
        stored_weights(tmp_path)


def test_a_missing_tokenizer_is_noted(tmp_path: Path) -> None:
    [note] = read_static_file(write_model(tmp_path, SMALL_LLAMA, tokenizer=False)).notes
    assert "no tokenizer" in note
    assert "can be profiled" in note


def test_an_unknown_architecture_with_weights_still_has_a_size(tmp_path: Path) -> None:
    write_model(tmp_path, {"model_type": "gpt2"})
    with pytest.raises(ModelError, match=r"'gpt2' is not supported.*still known.*225 parameters"):
        read_static_file(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"'gpt2' is not supported.*nothing can be computed from this config alone"):
        read_static_file(tmp_path)


def test_an_engine_of_tensorrt_llm_is_read_like_the_model_that_it_was_built_from(tmp_path: Path) -> None:
    own = {
        "architecture": "LlamaForCausalLM",
        "dtype": "float16",
        "head_size": 16,
        "quantization": {"quant_algo": "FP8"},
        **{key: value for key, value in SMALL_LLAMA.items() if key != "model_type"},
    }
    (tmp_path / "config.json").write_text(json.dumps({"version": "1", "pretrained_config": own, "build_config": {}}))
    assert (
        load_architecture(tmp_path).parameters
        == load_architecture(write_model(tmp_path / "hf", SMALL_LLAMA)).parameters
    )
    assert stored_dtype(tmp_path) == "float8"
    (tmp_path / "config.json").write_text(json.dumps({**own, "architecture": "GPTForCausalLM"}))
    with pytest.raises(ModelError, match="'GPTForCausalLM' is not supported"):
        load_architecture(tmp_path)
