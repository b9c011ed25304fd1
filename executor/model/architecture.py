"""A decoder's shape, read from a Hugging Face `config.json`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from superinfer.executor.model.config_fields import ConfigFields, read_json_object
from superinfer.executor.model.expert_shape import ExpertShape, read_experts
from superinfer.executor.model.families import FAMILIES, SUPPORTED_MODEL_TYPES
from superinfer.executor.model.rope_scaling import Rope, read_rope
from superinfer.executor.model.windows import layer_windows


@dataclass(frozen=True, slots=True)
class Architecture:
    """All that a Llama-family decoder needs to know to be built; sizes in elements.

    `windows` has the tokens that a query sees in each layer, None for all. `query_key_norm` is a norm over each head's
    query and key; `fused` says that the checkpoint stores query, key and value as one matrix, and gate and up.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    norm_epsilon: float
    rope: Rope
    windows: tuple[int | None, ...]
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    query_key_norm: bool
    fused: bool
    experts: ExpertShape | None
    tied_head: bool
    eos_token_ids: tuple[int, ...]
    initializer_range: float = 0.02

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.heads // self.kv_heads

    @property
    def qkv_size(self) -> int:
        """Width of the fused query, key and value projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def parameters(self) -> int:
        """All parameters; a tied head counts once."""
        hidden, width = self.hidden_size, self.heads * self.head_dim
        attention = hidden * (self.qkv_size + width) + (self.qkv_size if self.qkv_bias else 0)
        attention += (hidden if self.output_bias else 0) + (2 * self.head_dim if self.query_key_norm else 0)
        mlp = 3 * hidden * self.intermediate_size + (2 * self.intermediate_size + hidden if self.mlp_bias else 0)
        with_experts = len(self.experts.layers) if self.experts else 0
        total = self.layers * (attention + 2 * hidden) + (self.layers - with_experts) * mlp
        if self.experts:
            total += with_experts * self.experts.parameters(hidden)
        return total + hidden + self.vocab_size * hidden * (1 if self.tied_head else 2)

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Bytes of keys and values that one token leaves in the cache."""
        return 2 * self.layers * self.kv_heads * self.head_dim * element_bytes


def load_architecture(directory: Path) -> Architecture:
    """Read `config.json` (and `generation_config.json` for the end-of-sequence ids). Raises ModelError."""
    path = directory / "config.json"
    config = read_json_object(path)
    generation_path = directory / "generation_config.json"
    generation = read_json_object(generation_path) if generation_path.exists() else {}
    return parse_architecture(config, generation, source=str(path))


def parse_architecture(config: dict[str, Any], generation: dict[str, Any], source: str) -> Architecture:
    """Build an Architecture from parsed configs; `source` names the file in errors. Raises ModelError."""
    fields = ConfigFields(config, source)
    model_type = config.get("model_type")
    if model_type not in FAMILIES:
        raise fields.unsupported("model_type", SUPPORTED_MODEL_TYPES)
    family = FAMILIES[model_type]
    _refuse_what_would_be_ignored(fields)
    heads, hidden, layers = (
        fields.size("num_attention_heads"),
        fields.size("hidden_size"),
        fields.size("num_hidden_layers"),
    )
    kv_heads = fields.size("num_key_value_heads", family.kv_heads or heads)
    head_dim = fields.size("head_dim", family.head_dim or hidden // heads)
    if heads % kv_heads or head_dim % 2:
        raise fields.error(
            f"{heads} attention heads, {kv_heads} key/value heads and head_dim {head_dim} do not "
            "fit together: heads must be a multiple of key/value heads, head_dim even"
        )
    max_positions = fields.size("max_position_embeddings", 2048)
    bias = fields.flag("attention_bias")
    return Architecture(
        model_type=model_type,
        vocab_size=fields.size("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.size("intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        max_positions=max_positions,
        norm_epsilon=fields.number("rms_norm_eps", 1e-6),
        rope=read_rope(fields, head_dim, max_positions),
        windows=layer_windows(fields, family, layers),
        qkv_bias=bias or fields.flag("qkv_bias", family.qkv_bias),
        output_bias=bias,
        mlp_bias=fields.flag("mlp_bias"),
        query_key_norm=family.query_key_norm,
        fused=family.fused,
        experts=read_experts(fields, family, layers),
        tied_head=fields.flag("tie_word_embeddings"),
        eos_token_ids=_token_ids(generation.get("eos_token_id", config.get("eos_token_id"))),
        initializer_range=fields.number("initializer_range", 0.02),
    )


def _refuse_what_would_be_ignored(fields: ConfigFields) -> None:
    """Settings that change the result and that this decoder does not know. Raises ModelError."""
    if fields.values.get("hidden_act", "silu") not in ("silu", "swish"):
        raise fields.unsupported("hidden_act", ("silu", "swish"))
    if fields.values.get("quantization_config") is not None:
        method = (fields.values["quantization_config"] or {}).get("quant_method", "?")
        raise fields.error(
            f"quantization_config with quant_method {method!r} is not supported; supported are "
            "checkpoints in float32, float16 and bfloat16"
        )


def _token_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)
