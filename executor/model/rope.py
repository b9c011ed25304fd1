"""Rotary position embedding (RoFormer, arXiv 2104.09864) with the frequency scaling of `rope_scaling`, after the norm
over each head's query and key that some models have."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from superinfer.executor.model.kernels import kernel, narrow_like, widen
from superinfer.executor.model.rope_scaling import Rope

FloatArray = npt.NDArray[np.float32]


def inverse_frequencies(rope: Rope, positions: int) -> FloatArray:
    """Radians per position of each pair of rotated dimensions, where sequences have up to `positions` tokens."""
    exponents = np.arange(0, rope.dimensions, 2, dtype=np.float32) / np.float32(rope.dimensions)
    frequencies: FloatArray = (1.0 / np.float32(rope.theta) ** exponents).astype(np.float32)
    scaling = rope.scaling
    if scaling.kind == "linear":
        return (frequencies / np.float32(scaling.factor)).astype(np.float32)
    if scaling.kind == "llama3":
        wavelengths = 2 * math.pi / frequencies
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        # 0 where a wavelength is longer than the first context ever trained on, 1 where it fits many times.
        keep = (scaling.original_max_positions / wavelengths - low) / (high - low)
        return _blend(frequencies, np.clip(keep, 0.0, 1.0), scaling.factor)
    if scaling.kind == "yarn":
        first, last = _yarn_range(rope)
        ramp = (np.arange(len(frequencies), dtype=np.float32) - first) / (last - first)
        return _blend(frequencies, 1 - np.clip(ramp, 0.0, 1.0), scaling.factor)
    if scaling.kind == "longrope":
        # One set for all, so that cached keys stay right while a sequence grows past the original context.
        long = positions > scaling.original_max_positions
        factors = np.asarray(scaling.long_factors if long else scaling.short_factors, np.float32)
        return (frequencies / factors).astype(np.float32)
    return frequencies


def _blend(frequencies: FloatArray, keep: npt.NDArray[np.floating[Any]], factor: float) -> FloatArray:
    """`keep` of a frequency as it is, the rest of it divided by `factor`."""
    return (keep * frequencies + (1 - keep) * frequencies / factor).astype(np.float32)


def _yarn_range(rope: Rope) -> tuple[int, float]:
    """Between which pairs YaRN (arXiv 2309.00071) goes from keeping a frequency to dividing it."""

    def pair(turns: float) -> float:
        wavelength = rope.scaling.original_max_positions / (turns * 2 * math.pi)
        return rope.dimensions * math.log(wavelength) / (2 * math.log(rope.theta))

    first = max(math.floor(pair(rope.scaling.beta_fast)), 0)
    last = min(math.ceil(pair(rope.scaling.beta_slow)), rope.dimensions - 1)
    return first, last if last != first else first + 0.001


def rotation_table(rope: Rope, positions: int) -> FloatArray:
    """Cosines then sines of each position, (positions, rotated dimensions), times the attention factor."""
    angles = np.arange(positions, dtype=np.float32)[:, None] * inverse_frequencies(rope, positions)
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    return (table * np.float32(rope.scaling.attention_factor)).astype(np.float32)


@kernel
def head_factor(source: Any, epsilon: Any) -> Any:
    """1 / root mean square of a head's elements; 1 where `epsilon` is negative, which stands for no norm."""
    if epsilon < np.float32(0.0):
        return np.float32(1.0)
    total = np.float32(0.0)
    for d in range(len(source)):
        value = widen(source[d])
        total += value * value
    return np.float32(1.0) / np.sqrt(total / np.float32(len(source)) + epsilon)


@kernel
def rotate_and_store(
    qkv: Any, positions: Any, slots: Any, table: Any, pool: Any, layer: int, scale: Any, queries: Any,
    query_norm: Any, key_norm: Any, epsilon: Any,
) -> None:  # fmt: skip
    """Rotate queries and keys of every token; keys and values go to the cache, queries to `queries`.

    qkv (tokens, (heads + 2 · kv_heads) · head_dim); slots (tokens,) is block · block_size + offset; pool as in
    `superinfer.executor.kv_cache`; queries (tokens, heads, head_dim) float32, multiplied by `scale`; table
    (positions, rotated dimensions), those beyond are not rotated. Before its rotation each head is normalised with
    weights query_norm and key_norm (head_dim,) where `epsilon` is not negative; elsewhere the weights are ones.
    """
    tokens, heads, dim = queries.shape
    block_size, kv_heads = pool.shape[3], pool.shape[4]
    rotated = table.shape[1]
    half = rotated // 2
    for t in range(tokens):
        cosines = table[positions[t], :half]
        sines = table[positions[t], half:]
        row = qkv[t]
        for h in range(heads):
            source = row[h * dim : (h + 1) * dim]
            target = queries[t, h]
            factor = head_factor(source, epsilon) * scale
            for d in range(half):
                a = widen(source[d]) * query_norm[d] * factor
                b = widen(source[half + d]) * query_norm[half + d] * factor
                target[d] = a * cosines[d] - b * sines[d]
                target[half + d] = b * cosines[d] + a * sines[d]
            for d in range(rotated, dim):
                target[d] = widen(source[d]) * query_norm[d] * factor
        block, offset = slots[t] // block_size, slots[t] % block_size
        for h in range(kv_heads):
            source = row[(heads + h) * dim : (heads + h + 1) * dim]
            key = pool[block, layer, 0, offset, h]
            factor = head_factor(source, epsilon)
            for d in range(half):
                a = widen(source[d]) * key_norm[d] * factor
                b = widen(source[half + d]) * key_norm[half + d] * factor
                key[d] = narrow_like(pool, a * cosines[d] - b * sines[d])
                key[half + d] = narrow_like(pool, b * cosines[d] + a * sines[d])
            for d in range(rotated, dim):
                key[d] = narrow_like(pool, widen(source[d]) * key_norm[d] * factor)
            source = row[(heads + kv_heads + h) * dim : (heads + kv_heads + h + 1) * dim]
            value = pool[block, layer, 1, offset, h]
            for d in range(dim):
                value[d] = narrow_like(pool, widen(source[d]))
