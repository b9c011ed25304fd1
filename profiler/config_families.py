"""What each family of Hugging Face configs says where: field names, defaults, biases, windows, mixtures.

Defaults are those of each family's own configuration class. A family that differs from Llama in shapes has a function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from superinfer.contracts.errors import ModelError
from superinfer.contracts.printable import shown
from superinfer.profiler.decoder_shapes import LatentAttention, ModelArchitecture

Config = Mapping[str, Any]

LARGEST_COUNT = 10**9
"""Beyond every model's sizes; figures that are products of larger ones leave the range of floating point."""


def read_family(model_type: str, config: Config, source: str) -> ModelArchitecture:
    """The shapes that a config of this model type gives; ModelError names a missing or wrong field."""
    return _READERS[model_type](_Fields(model_type, config, source))


class _Fields:
    """A config's fields, checked as they are read."""

    def __init__(self, model_type: str, config: Config, source: str) -> None:
        self.model_type, self.config, self.source = model_type, config, source

    def count(self, key: str, default: int | None = None) -> int:
        """A positive whole number."""
        value = self.config.get(key)
        if value is None:
            value = default
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise ModelError(f"{self.source}: {key} is {value!r}; a positive whole number is needed")
        if value > LARGEST_COUNT:
            raise ModelError(f"{self.source}: {key} is {shown(value)}; at most {LARGEST_COUNT:,} is accepted")
        return value

    def optional_count(self, key: str) -> int | None:
        """A positive whole number, or None where the config has none."""
        return self.count(key) if self.config.get(key) is not None else None

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        return bool(self.config.get(key, default))

    def common(self, *, kv_heads: int | None = None, head_dim: int | None = None) -> dict[str, Any]:
        """The fields that every family has; the arguments are a family's defaults, None those of Llama."""
        hidden_size = self.count("hidden_size")
        heads = self.count("num_attention_heads")
        kv = self.count("num_key_value_heads", kv_heads or heads)
        if heads % kv:
            raise ModelError(f"{self.source}: num_key_value_heads {kv} must divide num_attention_heads {heads}")
        return {
            "model_type": self.model_type,
            "vocab_size": self.count("vocab_size"),
            "hidden_size": hidden_size,
            "layers": self.count("num_hidden_layers"),
            "heads": heads,
            "kv_heads": kv,
            "head_dim": self.count("head_dim", head_dim or hidden_size // heads),
            "tied_embeddings": self.flag("tie_word_embeddings"),
            "max_position": self.optional_count("max_position_embeddings"),
        }

    def routing(self, experts_key: str, experts: int | None, per_token: int | None) -> dict[str, Any]:
        """Experts, and how many of them a token meets."""
        count = self.count(experts_key, experts)
        chosen = self.count("num_experts_per_tok", per_token)
        if chosen > count:
            raise ModelError(f"{self.source}: num_experts_per_tok {chosen} exceeds {experts_key} {count}")
        return {"experts": count, "experts_per_token": chosen}


def _llama(fields: _Fields) -> ModelArchitecture:
    biased = fields.flag("attention_bias")
    return ModelArchitecture(
        **fields.common(),
        intermediate_size=fields.count("intermediate_size"),
        qkv_bias=biased,
        output_bias=biased,
        mlp_bias=fields.flag("mlp_bias"),
        sliding_window=fields.optional_count("sliding_window"),
    )


def _mistral(fields: _Fields) -> ModelArchitecture:
    return ModelArchitecture(
        **fields.common(kv_heads=8),
        intermediate_size=fields.count("intermediate_size"),
        sliding_window=fields.optional_count("sliding_window"),
    )


def _mixtral(fields: _Fields) -> ModelArchitecture:
    return ModelArchitecture(
        **fields.common(kv_heads=8),
        **fields.routing("num_local_experts", 8, 2),
        intermediate_size=fields.count("intermediate_size"),
        sliding_window=fields.optional_count("sliding_window"),
    )


def _phi3(fields: _Fields) -> ModelArchitecture:
    return ModelArchitecture(
        **fields.common(),
        intermediate_size=fields.count("intermediate_size"),
        sliding_window=fields.optional_count("sliding_window"),
    )


def _phi3_small(fields: _Fields) -> ModelArchitecture:
    """Phi-3-small: biases everywhere, layer norms, tied head. Attention is counted dense: its block-sparse layers
    read less than is counted here.
    """
    common = fields.common()
    return ModelArchitecture(
        **{**common, "tied_embeddings": fields.flag("tie_word_embeddings", True)},
        intermediate_size=fields.count("ff_intermediate_size"),
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        norm_bias=True,
    )


def _qwen2(fields: _Fields) -> ModelArchitecture:
    common = fields.common(kv_heads=32)
    return ModelArchitecture(
        **common,
        intermediate_size=fields.count("intermediate_size"),
        qkv_bias=True,
        **_qwen_window(fields, common["layers"]),
    )


def _qwen3(fields: _Fields) -> ModelArchitecture:
    common = fields.common(kv_heads=32, head_dim=128)
    biased = fields.flag("attention_bias")
    return ModelArchitecture(
        **common,
        intermediate_size=fields.count("intermediate_size"),
        qkv_bias=biased,
        output_bias=biased,
        query_key_norm=True,
        **_qwen_window(fields, common["layers"]),
    )


def _qwen2_moe(fields: _Fields) -> ModelArchitecture:
    common = fields.common(kv_heads=16)
    return ModelArchitecture(
        **common,
        **fields.routing("num_experts", 60, 4),
        intermediate_size=fields.count("moe_intermediate_size", 1408),
        shared_intermediate_size=fields.count("shared_expert_intermediate_size", 5632),
        shared_gate=True,
        qkv_bias=fields.flag("qkv_bias", True),
        **_sparse_layers(fields, common["layers"]),
    )


def _qwen3_moe(fields: _Fields) -> ModelArchitecture:
    common = fields.common(kv_heads=4)
    biased = fields.flag("attention_bias")
    key = "num_experts" if fields.config.get("num_experts") is not None else "num_local_experts"
    return ModelArchitecture(
        **common,
        **fields.routing(key, 128, 8),
        intermediate_size=fields.count("moe_intermediate_size", 768),
        qkv_bias=biased,
        output_bias=biased,
        query_key_norm=True,
        **_sparse_layers(fields, common["layers"]),
    )


def _deepseek(fields: _Fields) -> ModelArchitecture:
    """DeepSeek-V2 and V3: latent attention, shared experts, the first layers dense."""
    latent = LatentAttention(
        kv_rank=fields.count("kv_lora_rank", 512),
        rope_dim=fields.count("qk_rope_head_dim", 64),
        nope_dim=fields.count("qk_nope_head_dim", 128),
        value_dim=fields.count("v_head_dim", 128),
        query_rank=None if fields.config.get("q_lora_rank", 0) is None else fields.count("q_lora_rank", 1536),
    )
    common = fields.common()
    biased = fields.flag("attention_bias")
    expert_size = fields.count("moe_intermediate_size")
    shared = fields.config.get("n_shared_experts")
    dense = fields.config.get("first_k_dense_replace", 3 if fields.model_type == "deepseek_v3" else 0)
    return ModelArchitecture(
        **{**common, "kv_heads": common["heads"], "head_dim": latent.nope_dim + latent.rope_dim},
        **fields.routing("n_routed_experts", None, None),
        latent=latent,
        intermediate_size=expert_size,
        shared_intermediate_size=expert_size * (shared if isinstance(shared, int) else 0),
        dense_layers=min(int(dense or 0), common["layers"]),
        dense_intermediate_size=fields.count("intermediate_size"),
        qkv_bias=biased,
        output_bias=biased,
    )


def _qwen_window(fields: _Fields, layers: int) -> dict[str, Any]:
    """Qwen limits the window from layer `max_window_layers` on, and only where it says so."""
    if not fields.flag("use_sliding_window") or fields.config.get("sliding_window") is None:
        return {}
    full = fields.config.get("max_window_layers", 28)
    limited = layers - min(int(full), layers) if isinstance(full, int) else layers
    return {"sliding_window": fields.count("sliding_window"), "window_layers": limited} if limited else {}


def _sparse_layers(fields: _Fields, layers: int) -> dict[str, Any]:
    """Layers that have one MLP although the model is a mixture."""
    step = fields.count("decoder_sparse_step", 1)
    named = fields.config.get("mlp_only_layers") or []
    dense = sum(layer in named or (layer + 1) % step != 0 for layer in range(layers))
    return {"dense_layers": dense, "dense_intermediate_size": fields.count("intermediate_size") if dense else 0}


_READERS: dict[str, Callable[[_Fields], ModelArchitecture]] = {
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "phi3": _phi3,
    "phi3small": _phi3_small,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
}
SUPPORTED_MODEL_TYPES = tuple(sorted(_READERS))
