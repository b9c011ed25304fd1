"""The config.json of a TensorRT-LLM engine or checkpoint, in the words of a Hugging Face config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "QWenForCausalLM": "qwen2",
    "Qwen2ForCausalLM": "qwen2",
    "Phi3ForCausalLM": "phi3",
}
SAME_KEYS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "max_position_embeddings",
)


def is_tensorrt_llm(config: Mapping[str, Any]) -> bool:
    """True for an engine's config, which holds that of its checkpoint, and for a checkpoint's own."""
    return isinstance(config.get("pretrained_config"), dict) or (
        "architecture" in config and "model_type" not in config
    )


def as_hugging_face(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that shapes follow from; an architecture without a counterpart keeps its own name."""
    own = config.get("pretrained_config", config)
    architecture = own.get("architecture")
    result = {key: own[key] for key in SAME_KEYS if own.get(key) is not None}
    result["model_type"] = MODEL_TYPES.get(architecture, architecture)
    result["head_dim"] = own.get("head_size")
    result["dtype"] = own.get("dtype")
    result["tie_word_embeddings"] = own.get("share_embedding_table", False)
    mixture = own.get("moe") or {}
    if mixture.get("num_experts"):
        result["num_local_experts"] = mixture["num_experts"]
        result["num_experts_per_tok"] = mixture.get("top_k")
    if str((own.get("quantization") or {}).get("quant_algo")).startswith("FP8"):
        result["quantization_config"] = {"quant_method": "fp8"}
    return result
