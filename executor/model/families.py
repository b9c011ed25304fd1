"""What sets one family of decoders apart from Llama, where its `config.json` does not say so itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WindowRule = Literal["none", "all", "from_layer", "alternating"]
"""Which layers see a sliding window only: none, all of them, those from `max_window_layers` on, or every other one
before `max_window_layers`."""


@dataclass(frozen=True, slots=True)
class Family:
    """Defaults as in the family's configuration class of transformers.

    `kv_heads` None stands for as many as attention heads, `head_dim` None for hidden size / heads. A window needs
    `use_sliding_window` where `window_is_optional`. `fused` checkpoints store query, key and value as one
    matrix, and gate and up as one. `experts_prefix` is the part of a layer that holds router and experts,
    `expert_names` are those of the gate, up and down matrices of one expert, whose
    inner width is the config's `expert_size_field`. `normalise_experts`: a token's expert weights sum to 1
    although no `norm_topk_prob` says so.
    """

    kv_heads: int | None = None
    head_dim: int | None = None
    qkv_bias: bool = False
    query_key_norm: bool = False
    fused: bool = False
    window: WindowRule = "none"
    window_is_optional: bool = False
    experts_prefix: str | None = None
    expert_names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    expert_size_field: str = "moe_intermediate_size"
    shared_expert: bool = False
    normalise_experts: bool = False


FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "mistral": Family(kv_heads=8, window="all"),
    "mixtral": Family(
        kv_heads=8, window="all", experts_prefix="block_sparse_moe", expert_names=("w1", "w3", "w2"),
        expert_size_field="intermediate_size", normalise_experts=True,
    ),
    "phi3": Family(window="all", fused=True),
    "qwen2": Family(kv_heads=32, qkv_bias=True, window="from_layer", window_is_optional=True),
    "qwen2_moe": Family(
        kv_heads=16, qkv_bias=True, window="alternating", window_is_optional=True, experts_prefix="mlp",
        shared_expert=True,
    ),
    "qwen3": Family(kv_heads=32, head_dim=128, query_key_norm=True, window="from_layer", window_is_optional=True),
    "qwen3_moe": Family(
        kv_heads=4, query_key_norm=True, window="all", window_is_optional=True, experts_prefix="mlp",
    ),
}  # fmt: skip

SUPPORTED_MODEL_TYPES = tuple(FAMILIES)
