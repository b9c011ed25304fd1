"""Rotary position embedding (RoFormer, arXiv 2104.09864) with linear and Llama 3 frequency scaling."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from superinfer.executor.model.architecture import Architecture
from superinfer.executor.model.kernels import kernel, narrow_like, widen


def inverse_frequencies(architecture: Architecture) -> npt.NDArray[np.float32]:
    """Radians per position of each pair of dimensions, (head_dim / 2,)."""
    exponents = np.arange(0, architecture.head_dim, 2, dtype=np.float32) / np.float32(architecture.head_dim)
    frequencies = (1.0 / np.float32(architecture.rope_theta) ** exponents).astype(np.float32)
    scaling = architecture.rope_scaling
    if scaling.kind == "linear":
        return (frequencies / np.float32(scaling.factor)).astype(np.float32)
    if scaling.kind == "llama3":
        wavelengths = 2 * math.pi / frequencies
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        # 0 where a wavelength is longer than the first context ever trained on, 1 where it fits many times.
        keep = (scaling.original_max_positions / wavelengths - low) / (high - low)
        keep = np.clip(keep, 0.0, 1.0)
        return (keep * frequencies + (1 - keep) * frequencies / scaling.factor).astype(np.float32)
    return frequencies


def rotation_table(architecture: Architecture, positions: int) -> npt.NDArray[np.float32]:
    """Cosines then sines of each position, (positions, head_dim)."""
    angles = np.arange(positions, dtype=np.float32)[:, None] * inverse_frequencies(architecture)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


@kernel
def rotate_and_store(
    qkv: Any, positions: Any, slots: Any, table: Any, pool: Any, layer: int, scale: Any, queries: Any
) -> None:
    """Rotate queries and keys of every token; keys and values go to the cache, queries to `queries`.

    qkv (tokens, (heads + 2 · kv_heads) · head_dim); slots (tokens,) is block · block_size + offset; pool as in
    `superinfer.executor.kv_cache`; queries (tokens, heads, head_dim) float32, multiplied by `scale`.
    """
    tokens, heads, dim = queries.shape
    block_size, kv_heads = pool.shape[3], pool.shape[4]
    half = dim // 2
    for t in range(tokens):
        cosines = table[positions[t], :half]
        sines = table[positions[t], half:]
        row = qkv[t]
        for h in range(heads):
            source = row[h * dim : (h + 1) * dim]
            target = queries[t, h]
            for d in range(half):
                a, b = widen(source[d]), widen(source[half + d])
                target[d] = (a * cosines[d] - b * sines[d]) * scale
                target[half + d] = (b * cosines[d] + a * sines[d]) * scale
        block, offset = slots[t] // block_size, slots[t] % block_size
        for h in range(kv_heads):
            source = row[(heads + h) * dim : (heads + h + 1) * dim]
            key = pool[block, layer, 0, offset, h]
            for d in range(half):
                a, b = widen(source[d]), widen(source[half + d])
                key[d] = narrow_like(pool, a * cosines[d] - b * sines[d])
                key[half + d] = narrow_like(pool, b * cosines[d] + a * sines[d])
            source = row[(heads + kv_heads + h) * dim : (heads + kv_heads + h + 1) * dim]
            value = pool[block, layer, 1, offset, h]
            for d in range(dim):
                value[d] = source[d]
