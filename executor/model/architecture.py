"""A decoder's shape, read from a Hugging Face `config.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from superinfer.contracts.errors import ModelError

SUPPORTED_MODEL_TYPES = ("llama", "mistral", "qwen2")
SUPPORTED_ROPE_TYPES = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched. The last three fields are Llama 3's (factors of wavelength)."""

    kind: str = "default"
    factor: float = 1.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_max_positions: int = 8192


@dataclass(frozen=True, slots=True)
class Architecture:
    """All that a Llama-family decoder needs to know to be built; sizes in elements."""

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
    rope_theta: float
    rope_scaling: RopeScaling
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
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
    def linear_parameters(self) -> int:
        """Parameters of the linear layers, output head included."""
        attention = self.hidden_size * (self.qkv_size + self.heads * self.head_dim)
        layer = attention + 3 * self.hidden_size * self.intermediate_size
        return self.layers * layer + self.vocab_size * self.hidden_size

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Bytes of keys and values that one token leaves in the cache."""
        return 2 * self.layers * self.kv_heads * self.head_dim * element_bytes


def load_architecture(directory: Path) -> Architecture:
    """Read `config.json` (and `generation_config.json` for the end-of-sequence ids). Raises ModelError."""
    path = directory / "config.json"
    config = _read_json(path)
    generation_path = directory / "generation_config.json"
    generation = _read_json(generation_path) if generation_path.exists() else {}
    return parse_architecture(config, generation, source=str(path))


def parse_architecture(config: dict[str, Any], generation: dict[str, Any], source: str) -> Architecture:
    """Build an Architecture from parsed configs; `source` names the file in errors. Raises ModelError."""
    model_type = config.get("model_type")
    if model_type not in SUPPORTED_MODEL_TYPES:
        raise ModelError(
            f"{source}: model_type {model_type!r} is not supported; supported are {', '.join(SUPPORTED_MODEL_TYPES)}"
        )
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelError(f"{source}: hidden_act {activation!r} is not supported; supported is silu")

    def size(key: str, default: int | None = None) -> int:
        value = config.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or value < 1:
            raise ModelError(f"{source}: {key} must be a positive integer, not {value!r}")
        return value

    heads, hidden = size("num_attention_heads"), size("hidden_size")
    kv_heads = size("num_key_value_heads", heads)
    head_dim = size("head_dim", hidden // heads)
    if heads % kv_heads or head_dim % 2:
        raise ModelError(
            f"{source}: {heads} attention heads, {kv_heads} key/value heads and head_dim {head_dim} do not "
            "fit together: heads must be a multiple of key/value heads, head_dim even"
        )
    theta, scaling = _rope(config, source)
    bias = bool(config.get("attention_bias", False))
    return Architecture(
        model_type=model_type,
        vocab_size=size("vocab_size"),
        hidden_size=hidden,
        intermediate_size=size("intermediate_size"),
        layers=size("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        max_positions=_max_positions(config, size("max_position_embeddings", 2048)),
        norm_epsilon=float(config.get("rms_norm_eps", 1e-6)),
        rope_theta=theta,
        rope_scaling=scaling,
        qkv_bias=bias or model_type == "qwen2",
        output_bias=bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
        tied_head=bool(config.get("tie_word_embeddings", False)),
        eos_token_ids=_token_ids(generation.get("eos_token_id", config.get("eos_token_id"))),
        initializer_range=float(config.get("initializer_range", 0.02)),
    )


def _max_positions(config: dict[str, Any], positions: int) -> int:
    """Within its sliding window a windowed model equals a full one, so the window caps the length."""
    window = config.get("sliding_window")
    if window and config.get("use_sliding_window", config["model_type"] == "mistral"):
        return min(positions, int(window))
    return positions


def _rope(config: dict[str, Any], source: str) -> tuple[float, RopeScaling]:
    """Rotary base and scaling, from the newer `rope_parameters` or `rope_theta` with `rope_scaling`."""
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(found.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = found.get("rope_type", found.get("type", "default"))
    if kind not in SUPPORTED_ROPE_TYPES:
        raise ModelError(
            f"{source}: rope scaling {kind!r} is not supported; supported are {', '.join(SUPPORTED_ROPE_TYPES)}"
        )
    return theta, RopeScaling(
        kind=kind,
        factor=float(found.get("factor", 1.0)),
        low_frequency_factor=float(found.get("low_freq_factor", 1.0)),
        high_frequency_factor=float(found.get("high_freq_factor", 4.0)),
        original_max_positions=int(found.get("original_max_position_embeddings", 8192)),
    )


def _token_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path}: not found; a model directory holds a config.json") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path}: must hold a JSON object")
    return content
