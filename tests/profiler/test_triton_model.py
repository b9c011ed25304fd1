"""Triton Inference Server model repositories: which model an entry serves."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("google.protobuf")

from superinfer.contracts.errors import ModelError
from superinfer.profiler.triton_model import triton_reference

COMMON = """
max_batch_size: 8
input [ { name: "text" data_type: TYPE_STRING dims: [ -1 ] optional: true } ]
output [ { name: "answer", data_type: TYPE_STRING, dims: [ -1 ] } ]
instance_group [ { count: 1 kind: KIND_GPU gpus: [ 0 ] } ]  # a comment
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }
"""


def entry(repository: Path, name: str, text: str, version: str = "1") -> Path:
    folder = repository / name
    (folder / version).mkdir(parents=True)
    (folder / "config.pbtxt").write_text(f'name: "{name}"\n{text}{COMMON}')
    return folder


def test_onnx_runtime_serves_the_graph_of_its_latest_version(tmp_path: Path) -> None:
    folder = entry(tmp_path, "decoder", 'platform: "onnxruntime_onnx"\n')
    (folder / "10").mkdir()
    for version in ("1", "10"):
        (folder / version / "model.onnx").write_bytes(b"")
    assert triton_reference(folder) == str(folder / "10" / "model.onnx")
    assert triton_reference(folder / "config.pbtxt") == str(folder / "10" / "model.onnx")


def test_the_graph_may_have_another_name_and_has_to_be_there(tmp_path: Path) -> None:
    folder = entry(tmp_path, "decoder", 'backend: "onnxruntime"\ndefault_model_filename: "llama.onnx"\n')
    with pytest.raises(ModelError, match=r"llama\.onnx, which does not exist"):
        triton_reference(folder)
    (folder / "1" / "llama.onnx").write_bytes(b"")
    assert triton_reference(folder) == str(folder / "1" / "llama.onnx")


def test_vllm_names_its_model_in_a_file_beside(tmp_path: Path) -> None:
    folder = entry(tmp_path, "chat", 'backend: "vllm"\n')
    (folder / "1" / "model.json").write_text('{"model": "org/name", "gpu_memory_utilization": 0.5}')
    assert triton_reference(folder) == "org/name"
    (folder / "1" / "model.json").write_text('{"modle": "org/name"}')
    with pytest.raises(ModelError, match=r"model\.json: model is None"):
        triton_reference(folder)


def test_tensorrt_llm_names_its_engine_in_a_parameter(tmp_path: Path) -> None:
    text = (
        'backend: "tensorrtllm"\n'
        'parameters: { key: "gpt_model_type" value: { string_value: "inflight_fused_batching" } }\n'
        'parameters { key: "gpt_model_path", value { string_value: "engine" } }\n'
    )
    folder = entry(tmp_path, "tensorrt_llm", text)
    (folder / "engine").mkdir()
    assert triton_reference(folder) == str(folder / "engine")


def test_an_ensemble_is_followed_to_the_step_that_is_a_model(tmp_path: Path) -> None:
    steps = 'step [ { model_name: "front" model_version: -1 }, { model_name: "all" }, { model_name: "decoder" } ]'
    folder = entry(tmp_path, "all", f'platform: "ensemble"\nensemble_scheduling {{ {steps} }}\n')
    entry(tmp_path, "front", 'backend: "python"\n')
    decoder = entry(tmp_path, "decoder", 'backend: "onnxruntime"\n')
    (decoder / "1" / "model.onnx").write_bytes(b"")
    assert triton_reference(folder) == str(decoder / "1" / "model.onnx")
    (decoder / "1" / "model.onnx").unlink()
    with pytest.raises(ModelError, match="no step of this ensemble names a model"):
        triton_reference(folder)


def test_a_template_that_nobody_filled_in_and_a_malformed_file_are_clear_errors(tmp_path: Path) -> None:
    text = 'backend: "tensorrtllm"\nparameters { key: "gpt_model_path" value { string_value: "${engine_dir}" } }\n'
    with pytest.raises(ModelError, match="'tensorrtllm' names no model; accepted: onnxruntime"):
        triton_reference(entry(tmp_path, "unfilled", text))
    folder = entry(tmp_path, "broken", 'backend: "vllm\n')
    with pytest.raises(ModelError, match="is not a Triton model configuration"):
        triton_reference(folder)
    with pytest.raises(ModelError, match="cannot be read"):
        triton_reference(tmp_path / "none" / "config.pbtxt")
