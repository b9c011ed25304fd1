"""Attention of decoding sequences, one query token each, over paged keys and values read in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from superinfer.executor.model.kernels import exp2, kernel, narrow_like, widen


@kernel
def decode_attention(
    queries: Any, pool: Any, layer: int, block_tables: Any, context_lengths: Any, scores: Any, sums: Any, out: Any
) -> None:
    """out[i] = attention of queries[i] over the first context_lengths[i] tokens of block_tables[i].

    queries (rows, heads, head_dim) float32, already multiplied by log2(e) / sqrt(head_dim), so that the softmax is
    a power of two; pool (block, layer, k/v, slot, kv_head, head_dim); out (rows, heads · head_dim). Scratch, float32:
    scores (heads, longest context), sums (heads, head_dim).
    """
    heads, dim = queries.shape[1], queries.shape[2]
    block_size, kv_heads = pool.shape[3], pool.shape[4]
    group = heads // kv_heads
    for i in range(len(context_lengths)):
        length = context_lengths[i]
        blocks = (length + block_size - 1) // block_size
        for j in range(blocks):
            keys = pool[block_tables[i, j], layer, 0]
            first = j * block_size
            for slot in range(min(block_size, length - first)):
                for h in range(kv_heads):
                    key = keys[slot, h]
                    for g in range(h * group, (h + 1) * group):
                        query = queries[i, g]
                        total = np.float32(0.0)
                        for d in range(dim):
                            total += query[d] * widen(key[d])
                        scores[g, first + slot] = total
        for g in range(heads):
            row = scores[g, :length]
            largest = row[0]
            for t in range(length):
                largest = max(largest, row[t])
            total = np.float32(0.0)
            for t in range(length):
                weight = exp2(row[t] - largest)
                row[t] = weight
                total += weight
            factor = np.float32(1.0) / total
            for t in range(length):
                row[t] *= factor
        sums[:] = np.float32(0.0)
        for j in range(blocks):
            values = pool[block_tables[i, j], layer, 1]
            first = j * block_size
            for slot in range(min(block_size, length - first)):
                for h in range(kv_heads):
                    value = values[slot, h]
                    for g in range(h * group, (h + 1) * group):
                        target = sums[g]
                        weight = scores[g, first + slot]
                        for d in range(dim):
                            target[d] += weight * widen(value[d])
        for g in range(heads):
            for d in range(dim):
                out[i, g * dim + d] = narrow_like(out, sums[g, d])
