from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superinfer.contracts.errors import ModelError
from superinfer.executor.models.gguf_convert import convert_gguf, hugging_face_name, unpermute_rotary

HIDDEN, HEADS, KV_HEADS, FFN, WORDS = 64, 4, 2, 96, ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "ab", "1"]


def permute(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """The order in which GGUF files of Llama models store the rows of q and k."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


@given(st.integers(1, 5), st.integers(1, 8), st.integers(1, 4))
def test_unpermute_rotary_undoes_the_permutation(heads: int, half: int, columns: int) -> None:
    weight = np.arange(heads * 2 * half * columns, dtype=np.float32).reshape(-1, columns)
    assert np.array_equal(unpermute_rotary(permute(weight, heads), heads), weight)


def write_gguf(file: Path, architecture: str = "llama") -> dict[str, np.ndarray[Any, Any]]:
    """A one-layer model with Q8_0 matrices; returns the matrices by their Hugging Face name."""
    import gguf

    writer = gguf.GGUFWriter(str(file), architecture)
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(WORDS)
    writer.add_token_types([3, 3, 3, 1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    random = np.random.default_rng(0)
    matrices = {}
    for name, rows, columns in [
        ("token_embd", len(WORDS), HIDDEN),
        ("blk.0.attn_q", HIDDEN, HIDDEN),
        ("blk.0.attn_k", HIDDEN // 2, HIDDEN),
        ("blk.0.attn_v", HIDDEN // 2, HIDDEN),
        ("blk.0.attn_output", HIDDEN, HIDDEN),
        ("blk.0.ffn_gate", FFN, HIDDEN),
        ("blk.0.ffn_up", FFN, HIDDEN),
        ("blk.0.ffn_down", HIDDEN, FFN),
    ]:
        matrix = random.normal(size=(rows, columns)).astype(np.float32)
        matrices[hugging_face_name(f"{name}.weight")] = matrix
        heads = {"blk.0.attn_q": HEADS, "blk.0.attn_k": KV_HEADS}.get(name)
        stored = permute(matrix, heads) if heads else matrix
        packed = gguf.quants.quantize(stored, gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor(f"{name}.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return matrices


def test_a_quantized_file_becomes_bfloat16_safetensors_with_the_same_weights(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    matrices = write_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "model").mkdir()
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "model", lambda stage, done, total: None)
    loaded = load_file(tmp_path / "model" / "model.safetensors")
    for name, matrix in matrices.items():
        # Q8_0 keeps 1/127 of each block's largest value, bfloat16 one part in 256.
        assert np.abs(loaded[name].float().numpy() - matrix).max() < 0.03, name
    assert {str(tensor.dtype) for tensor in loaded.values()} == {"torch.bfloat16"}
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["tie_word_embeddings"]
    assert (config["rms_norm_eps"], config["num_key_value_heads"], config["eos_token_id"]) == (1e-5, 2, 2)


def test_the_tokenizer_comes_along_with_template_and_special_tokens(tmp_path: Path) -> None:
    from superinfer.executor.tokenizer import load_tokenizer

    write_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "model").mkdir()
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "model", lambda stage, done, total: None)
    tokenizer = load_tokenizer(tmp_path / "model")
    assert tokenizer.encode("ab1b<|im_end|>") == [5, 6, 4, 2]
    assert tokenizer.eos_token_ids == (2,)
    assert tokenizer.decode([5, 2, 6]) == "ab1"
    assert tokenizer.apply_chat_template([{"role": "user", "content": "ba"}]) == [4, 3]


def test_another_architecture_or_tensor_is_refused_by_name(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", "mamba")
    with pytest.raises(ModelError, match=r"tiny.gguf holds a 'mamba' model"):
        convert_gguf(tmp_path / "tiny.gguf", tmp_path, lambda stage, done, total: None)
    with pytest.raises(ModelError, match=r"tensor 'blk.0.ssm_in.weight'"):
        hugging_face_name("blk.0.ssm_in.weight")
