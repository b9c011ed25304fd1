"""Attention of decoding sequences, one query token each, over paged keys and values read in place.

Each block is read once for all query heads: keys token by token into a score matrix, softmax, then values four tokens
at a time. A kernel is compiled for each (head_dim, group) and cached on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from superinfer.executor.model.kernels import (
    bits_to_float,
    exp2,
    float_to_bits,
    kernel,
    narrow_like,
)
from superinfer.executor.model.vectors import accumulate, dots, prefetch

GROUP_TILE = 4
"""Query heads of one key head taken together; more would not fit the vector registers."""
TOKEN_TILE = 4


@kernel
def softmax_weights(row: Any) -> Any:
    """row = 2^(row − max(row)) in place; returns the sum. The maximum is taken on ordered integers, which vectorise."""
    largest = np.int32(-(2**31))
    for t in range(len(row)):
        bits = np.int32(float_to_bits(row[t]))
        largest = max(largest, bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))
    bits = largest ^ ((largest >> np.int32(31)) & np.int32(0x7FFFFFFF))
    top = bits_to_float(np.uint32(bits))
    total = np.float32(0.0)
    for t in range(len(row)):
        weight = exp2(row[t] - top)
        row[t] = weight
        total += weight
    return total


@cache
def decode_attention_kernel(dim: int, group: int, wide: int) -> Callable[..., None]:
    """The kernel for head_dim `dim`, `group` query heads a key head, and float32 (`wide` 1) or bfloat16 (0) caches."""
    full_tiles, rest = divmod(group, GROUP_TILE)
    element = 4 if wide else 2
    key_bytes = dim * element
    tile_bytes = TOKEN_TILE * key_bytes

    @kernel
    def decode_attention(
        queries: Any, pool: Any, layer: int, block_tables: Any, context_lengths: Any, window: int,
        scores: Any, sums: Any, out: Any,
    ) -> None:  # fmt: skip
        block_size, kv_heads = pool.shape[3], pool.shape[4]
        heads = kv_heads * group
        token_bytes = kv_heads * dim * element
        half_bytes = block_size * token_bytes
        block_bytes = 2 * pool.shape[1] * half_bytes
        base = pool.ctypes.data + 2 * layer * half_bytes
        score_stride = scores.shape[1] * 4
        for i in range(len(context_lengths)):
            length = context_lengths[i]
            begin = max(0, length - window)
            first_block = begin // block_size
            blocks = (length + block_size - 1) // block_size
            for j in range(first_block, blocks):
                first = j * block_size
                # The next block's keys, or the first values once the keys are through.
                last = j + 1 == blocks
                ahead = base + block_tables[i, first_block if last else j + 1] * block_bytes
                if last:
                    ahead += half_bytes
                for slot in range(max(0, begin - first), min(block_size, length - first)):
                    key = base + block_tables[i, j] * block_bytes + slot * token_bytes
                    query = queries.ctypes.data + i * heads * dim * 4
                    score = scores.ctypes.data + (first + slot - begin) * 4
                    ahead_here = ahead + slot * token_bytes
                    for _h in range(kv_heads):
                        prefetch(ahead_here, key_bytes)
                        ahead_here += dim * element
                        for _tile in range(full_tiles):
                            dots(key, query, score, score_stride, dim, GROUP_TILE, wide)
                            query += GROUP_TILE * dim * 4
                            score += GROUP_TILE * score_stride
                        dots(key, query, score, score_stride, dim, rest, wide)
                        query += rest * dim * 4
                        score += rest * score_stride
                        key += dim * element
            for g in range(heads):
                # The division by the softmax's total waits for the end, where there are fewer numbers.
                scores[g, scores.shape[1] - 1] = softmax_weights(scores[g, : length - begin])
                for d in range(dim):
                    sums[g, d] = np.float32(0.0)
            for j in range(first_block, blocks):
                first = j * block_size
                here = min(block_size, length - first)
                ahead = base + block_tables[i, min(j + 1, blocks - 1)] * block_bytes + half_bytes
                slot = max(0, begin - first)
                while slot < here:
                    take_tile = slot + TOKEN_TILE <= here
                    value = base + block_tables[i, j] * block_bytes + half_bytes + slot * token_bytes
                    total = sums.ctypes.data
                    score = scores.ctypes.data + (first + slot - begin) * 4
                    ahead_here = ahead + slot * token_bytes
                    for _h in range(kv_heads):
                        prefetch(ahead_here, tile_bytes)
                        ahead_here += TOKEN_TILE * dim * element
                        for _tile in range(full_tiles):
                            if take_tile:
                                accumulate(
                                    value, token_bytes, score, score_stride, total, TOKEN_TILE, dim, GROUP_TILE, wide
                                )
                            else:
                                accumulate(value, token_bytes, score, score_stride, total, 1, dim, GROUP_TILE, wide)
                            total += GROUP_TILE * dim * 4
                            score += GROUP_TILE * score_stride
                        if take_tile:
                            accumulate(value, token_bytes, score, score_stride, total, TOKEN_TILE, dim, rest, wide)
                        else:
                            accumulate(value, token_bytes, score, score_stride, total, 1, dim, rest, wide)
                        total += rest * dim * 4
                        score += rest * score_stride
                        value += dim * element
                    slot += TOKEN_TILE if take_tile else 1
            for g in range(heads):
                factor = np.float32(1.0) / scores[g, scores.shape[1] - 1]
                for d in range(dim):
                    out[i, g * dim + d] = narrow_like(out, sums[g, d] * factor)

    return decode_attention


def decode_attention(
    queries: Any, pool: Any, layer: int, block_tables: Any, context_lengths: Any, window: int,
    scores: Any, sums: Any, out: Any,
) -> None:  # fmt: skip
    """out[i] = attention of queries[i] over the tokens of block_tables[i].

    Of its first context_lengths[i] tokens the last `window` count.

    queries (rows, heads, head_dim) float32, already multiplied by log2(e) / sqrt(head_dim), so that the softmax is
    a power of two; pool (block, layer, k/v, slot, kv_head, head_dim), float32 or bfloat16 as uint16;
    out (rows, heads · head_dim), either type. Scratch, float32: scores (heads, more than the longest context),
    sums (heads, head_dim). All arrays are contiguous.
    """
    dim, group = pool.shape[5], queries.shape[1] // pool.shape[4]
    run = decode_attention_kernel(dim, group, int(pool.dtype == np.float32))
    run(queries, pool, layer, block_tables, context_lengths, window, scores, sums, out)
