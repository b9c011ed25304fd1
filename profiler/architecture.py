"""A decoder's architecture, read from its Hugging Face config.json: the shapes that costs follow from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from superinfer.contracts.errors import ModelError

# Key/value heads where the config leaves them out: the defaults of each family's own configuration class.
# None stands for "as many as attention heads".
_DEFAULT_KV_HEADS: dict[str, int | None] = {
    "llama": None,
    "mistral": 8,
    "mixtral": 8,
    "phi3": None,
    "qwen2": 32,
    "qwen3": 32,
}
SUPPORTED_MODEL_TYPES = tuple(sorted(_DEFAULT_KV_HEADS))


class ModelArchitecture(msgspec.Struct, frozen=True, kw_only=True):
    """Shapes of a decoder of the Llama family; `experts` is 1 for a dense model.

    `qkv_bias`, `output_bias` and `mlp_bias` say which linears carry one; `query_key_norm` is the norm over
    each head of Qwen3. `sliding_window` is the number of keys that a query sees where the model limits it.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    experts: int = 1
    experts_per_token: int = 1
    tied_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    query_key_norm: bool = False
    sliding_window: int | None = None
    max_position: int | None = None

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together, and so of all value heads."""
        return self.kv_heads * self.head_dim

    @property
    def attention_weights(self) -> int:
        """Elements of the query, key, value and output matrices of one layer."""
        return self.hidden_size * (self.query_size + 2 * self.kv_size) + self.query_size * self.hidden_size

    @property
    def expert_weights(self) -> int:
        """Elements of the gate, up and down matrices of one expert (of the whole MLP in a dense model)."""
        return 3 * self.hidden_size * self.intermediate_size

    @property
    def router_weights(self) -> int:
        """Elements of one layer's router; 0 for a dense model."""
        return self.hidden_size * self.experts if self.experts > 1 else 0

    @property
    def head_weights(self) -> int:
        """Elements of the output head, which is the embedding itself where they are tied."""
        return self.vocab_size * self.hidden_size

    @property
    def _small_weights(self) -> int:
        """Norms and biases of one layer."""
        small = 2 * self.hidden_size
        if self.query_key_norm:
            small += 2 * self.head_dim
        if self.qkv_bias:
            small += self.query_size + 2 * self.kv_size
        if self.output_bias:
            small += self.hidden_size
        if self.mlp_bias:
            small += 2 * self.intermediate_size + self.hidden_size
        return small

    def _parameters(self, experts: int) -> int:
        layer = self.attention_weights + experts * self.expert_weights + self.router_weights
        embeddings = self.head_weights * (1 if self.tied_embeddings else 2)
        return self.layers * (layer + self._small_weights) + embeddings + self.hidden_size

    @property
    def parameters(self) -> int:
        """All parameters; a tied head counts once."""
        return self._parameters(self.experts)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token meets: all but the experts it is not routed to."""
        return self._parameters(self.experts_per_token)

    @property
    def linear_weights_per_token(self) -> int:
        """Weight elements that a token is multiplied by in all layers, head excluded."""
        layer = self.attention_weights + self.experts_per_token * self.expert_weights + self.router_weights
        return self.layers * layer

    def visible_keys(self, context: int) -> int:
        """Keys that a query sees with `context` tokens up to and including itself."""
        return context if self.sliding_window is None else min(context, self.sliding_window)


def architecture_from_config(config: Mapping[str, Any], *, source: str = "config.json") -> ModelArchitecture:
    """The architecture that a Hugging Face config describes; ModelError names a missing or wrong field."""
    model_type = config.get("model_type")
    if model_type not in _DEFAULT_KV_HEADS:
        raise ModelError(
            f"{source}: model_type {model_type!r} is not supported; supported: {', '.join(SUPPORTED_MODEL_TYPES)}"
        )
    assert isinstance(model_type, str)
    hidden_size = _positive(config, "hidden_size", source)
    heads = _positive(config, "num_attention_heads", source)
    kv_heads = _positive(config, "num_key_value_heads", source, default=_DEFAULT_KV_HEADS[model_type] or heads)
    if heads % kv_heads:
        raise ModelError(f"{source}: num_key_value_heads {kv_heads} must divide num_attention_heads {heads}")
    head_dim = _positive(config, "head_dim", source, default=128 if model_type == "qwen3" else hidden_size // heads)
    is_moe = model_type == "mixtral"
    experts = _positive(config, "num_local_experts", source, default=8) if is_moe else 1
    experts_per_token = _positive(config, "num_experts_per_tok", source, default=2) if is_moe else 1
    if experts_per_token > experts:
        raise ModelError(f"{source}: num_experts_per_tok {experts_per_token} exceeds num_local_experts {experts}")
    has_attention_bias = model_type in ("llama", "qwen3") and bool(config.get("attention_bias", False))
    uses_window = model_type not in ("qwen2", "qwen3") or bool(config.get("use_sliding_window", False))
    has_window = uses_window and config.get("sliding_window") is not None
    has_limit = config.get("max_position_embeddings") is not None
    return ModelArchitecture(
        model_type=model_type,
        vocab_size=_positive(config, "vocab_size", source),
        hidden_size=hidden_size,
        layers=_positive(config, "num_hidden_layers", source),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=_positive(config, "intermediate_size", source),
        experts=experts,
        experts_per_token=experts_per_token,
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=has_attention_bias or model_type == "qwen2",
        output_bias=has_attention_bias,
        mlp_bias=model_type == "llama" and bool(config.get("mlp_bias", False)),
        query_key_norm=model_type == "qwen3",
        sliding_window=_positive(config, "sliding_window", source) if has_window else None,
        max_position=_positive(config, "max_position_embeddings", source) if has_limit else None,
    )


def load_architecture(path: Path) -> ModelArchitecture:
    """The architecture of a model directory, or of a config.json itself."""
    file = _config_file(path)
    return architecture_from_config(_load_config(file), source=str(file))


def stored_dtype(path: Path) -> str:
    """The precision that a model's weights are stored in, by its config; bfloat16 where it does not say."""
    config = _load_config(_config_file(path))
    stored = config.get("dtype") or config.get("torch_dtype")
    return stored if stored in ("float32", "float16") else "bfloat16"


def _config_file(path: Path) -> Path:
    return path / "config.json" if path.is_dir() else path


def _load_config(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{file} does not exist; a Hugging Face model directory holds a config.json") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read as JSON: {error}") from None
    if not isinstance(config, dict):
        raise ModelError(f"{file} holds {type(config).__name__}, not a JSON object")
    return config


def _positive(config: Mapping[str, Any], key: str, source: str, *, default: int | None = None) -> int:
    value = config.get(key)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ModelError(f"{source}: {key} is {value!r}; a positive whole number is needed")
    return value
