"""GGUF file of a Llama-family model → Hugging Face directory: bfloat16 safetensors, config, tokenizer, template.

The tensors are dequantized here, tensor by tensor: loaders that keep them packed cannot be saved again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superinfer.contracts.errors import ModelError
from superinfer.executor.models.gguf_fields import GGUFFields
from superinfer.executor.models.gguf_tokenizer import write_tokenizer
from superinfer.executor.models.source import Progress

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def convert_gguf(gguf_file: Path, directory: Path, progress: Progress) -> None:
    """Write the model in `gguf_file` into `directory`. Raises ModelError for another architecture than Llama."""
    from gguf import GGUFReader

    progress("read", 0, 1)
    reader = GGUFReader(str(gguf_file))
    fields = GGUFFields(reader)
    architecture = fields.text("general.architecture")
    if architecture != "llama":
        raise ModelError(f"{gguf_file.name} holds a {architecture!r} model; only 'llama' GGUF files are converted")
    progress("read", 1, 1)
    config = llama_config(fields, tied=all(tensor.name != "output.weight" for tensor in reader.tensors))
    _write_json(directory / "config.json", config)
    _write_json(directory / "generation_config.json", _generation_config(config))
    write_tokenizer(fields, directory)
    _write_weights(reader.tensors, config, directory / "model.safetensors", progress)


def llama_config(fields: GGUFFields, *, tied: bool) -> dict[str, Any]:
    """config.json of a Llama model, from the GGUF file's metadata."""
    heads = int(fields.number("llama.attention.head_count"))
    hidden_size = int(fields.number("llama.embedding_length"))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "intermediate_size": int(fields.number("llama.feed_forward_length")),
        "num_hidden_layers": int(fields.number("llama.block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(fields.number("llama.attention.head_count_kv")),
        "head_dim": hidden_size // heads,
        "max_position_embeddings": int(fields.number("llama.context_length")),
        # Stored as float32: six digits give back the number that was written.
        "rms_norm_eps": float(f"{fields.number('llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": fields.number("llama.rope.freq_base"),
        "tie_word_embeddings": tied,
        "vocab_size": len(fields.texts("tokenizer.ggml.tokens")),
        "bos_token_id": int(fields.number("tokenizer.ggml.bos_token_id")),
        "eos_token_id": int(fields.number("tokenizer.ggml.eos_token_id")),
        "pad_token_id": int(fields.number("tokenizer.ggml.padding_token_id")),
        "torch_dtype": "bfloat16",
    }


def hugging_face_name(gguf_name: str) -> str:
    """`blk.3.attn_q.weight` → `model.layers.3.self_attn.q_proj.weight`. Raises ModelError for unknown tensors."""
    if gguf_name in TOP_TENSORS:
        return TOP_TENSORS[gguf_name]
    match gguf_name.split("."):
        case ["blk", layer, kind, "weight"] if kind in LAYER_TENSORS:
            return f"model.layers.{layer}.{LAYER_TENSORS[kind]}.weight"
    raise ModelError(f"the GGUF file has a tensor {gguf_name!r} that a plain Llama model does not have")


def unpermute_rotary(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Undo GGUF's interleaved order of each head's rotary pairs: (heads·dim, in), halves first again."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _write_weights(tensors: Any, config: dict[str, Any], file: Path, progress: Progress) -> None:
    import numpy as np
    import torch
    from gguf.quants import dequantize
    from safetensors.torch import save_file

    rotary_heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = {}
    for index, tensor in enumerate(tensors):
        progress("convert", index, len(tensors))
        values = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        kind = tensor.name.split(".")[-2]
        if kind in rotary_heads:
            values = unpermute_rotary(values, rotary_heads[kind])
        shape = tuple(int(size) for size in reversed(tensor.shape))
        weights[hugging_face_name(tensor.name)] = (
            torch.from_numpy(values.reshape(shape)).to(torch.bfloat16).contiguous()
        )
    progress("convert", len(tensors), len(tensors))
    save_file(weights, file, metadata={"format": "pt"})


def _generation_config(config: dict[str, Any]) -> dict[str, Any]:
    return {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}


def _write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
