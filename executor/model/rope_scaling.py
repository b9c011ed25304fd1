"""How rotary frequencies are stretched beyond the context a model was first trained on, read from its config."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from superinfer.executor.model.config_fields import ConfigFields

SUPPORTED_ROPE_TYPES = ("default", "linear", "llama3", "longrope", "yarn")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """`kind` of SUPPORTED_ROPE_TYPES; which fields count depends on it.

    `low_frequency_factor` and `high_frequency_factor` are Llama 3's (factors of wavelength), `beta_fast` and
    `beta_slow` YaRN's (turns within the original context), `short_factors` and `long_factors` LongRoPE's (divisors of
    each frequency). `attention_factor` multiplies cosines and sines, and so queries and keys.
    """

    kind: str = "default"
    factor: float = 1.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_max_positions: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Rope:
    """Base, scaling, and how many of a head's dimensions are rotated (the first ones)."""

    theta: float
    dimensions: int
    scaling: RopeScaling


def read_rope(fields: ConfigFields, head_dim: int, max_positions: int) -> Rope:
    """From the newer `rope_parameters`, or `rope_theta` with `rope_scaling`. Raises ModelError."""
    name = "rope_parameters" if fields.values.get("rope_parameters") else "rope_scaling"
    found = fields.values.get(name) or {}
    if not isinstance(found, Mapping):
        raise fields.error(f"{name} must be an object, not {found!r}")
    merged = ConfigFields({**fields.values, **found}, f"{fields.source}: {name}")
    theta = merged.number("rope_theta", 10000.0)
    share = merged.number("partial_rotary_factor", 1.0)
    dimensions = int(head_dim * share)
    if dimensions < 2 or dimensions % 2 or dimensions > head_dim:
        raise fields.error(f"partial_rotary_factor {share} of head_dim {head_dim} must be an even number of dimensions")
    kind = found.get("rope_type", found.get("type")) or "default"
    if "short_factor" in found:
        # Older configs of Phi-3 call it "su" or "yarn".
        kind = "longrope"
    if kind not in SUPPORTED_ROPE_TYPES:
        raise fields.error(
            f"{name}.rope_type {kind!r} is not supported; supported are {', '.join(SUPPORTED_ROPE_TYPES)}"
        )
    return Rope(theta, dimensions, _scaling(kind, merged, found, dimensions, max_positions))


def _scaling(
    kind: str, merged: ConfigFields, found: Mapping[str, Any], dimensions: int, max_positions: int
) -> RopeScaling:
    if kind == "default":
        return RopeScaling()
    if kind == "linear":
        return RopeScaling(kind, merged.number("factor", 1.0))
    if kind == "llama3":
        return RopeScaling(
            kind,
            merged.number("factor", 1.0),
            low_frequency_factor=merged.number("low_freq_factor", 1.0),
            high_frequency_factor=merged.number("high_freq_factor", 4.0),
            original_max_positions=merged.size("original_max_position_embeddings", 8192),
        )
    original = merged.size("original_max_position_embeddings", max_positions)
    if kind == "yarn":
        for field in ("mscale", "mscale_all_dim", "truncate"):
            if found.get(field) is not None and found[field] is not True:
                raise merged.error(f"{field} {found[field]!r} is not supported with yarn; supported is to leave it out")
        factor = merged.number("factor", max_positions / original)
        return RopeScaling(
            kind,
            factor,
            original_max_positions=original,
            beta_fast=merged.number("beta_fast", 32.0),
            beta_slow=merged.number("beta_slow", 1.0),
            attention_factor=merged.number("attention_factor", 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0),
        )
    factor = merged.number("factor", max_positions / original)
    default_attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return RopeScaling(
        kind,
        factor,
        original_max_positions=original,
        short_factors=_factors(merged, "short_factor", dimensions // 2),
        long_factors=_factors(merged, "long_factor", dimensions // 2),
        attention_factor=merged.number("attention_factor", default_attention),
    )


def _factors(fields: ConfigFields, field: str, count: int) -> tuple[float, ...]:
    values = fields.values.get(field)
    if not isinstance(values, list) or len(values) != count or not all(isinstance(v, int | float) for v in values):
        raise fields.error(f"{field} must be a list of {count} numbers, one for each pair of rotated dimensions")
    return tuple(float(value) for value in values)
