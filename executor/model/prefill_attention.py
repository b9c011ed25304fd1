"""Causal attention of a prefill chunk over its sequence's paged context, the chunk's own tokens included.

Query heads that share a key head are folded into rows of one batched product, so no key is repeated; a chunk is cut
into spans of queries, and each span's keys end at its last query, which saves half of the masked work, and begin where
the window of its first query does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from superinfer.executor.model.batch import PrefillChunk
from superinfer.executor.model.kernels import as_numpy, exp2, kernel, narrow_like, widen

SPAN = 128


@kernel
def gather_context(pool: Any, layer: int, block_table: Any, keys: Any, values: Any) -> None:
    """Copy the first tokens of a sequence out of the pool. keys, values (kv_heads, tokens, head_dim)."""
    kv_heads, tokens, dim = keys.shape
    block_size = pool.shape[3]
    for j in range((tokens + block_size - 1) // block_size):
        block = pool[block_table[j], layer]
        for slot in range(min(block_size, tokens - j * block_size)):
            t = j * block_size + slot
            for h in range(kv_heads):
                for d in range(dim):
                    keys[h, t, d] = narrow_like(keys, widen(block[0, slot, h, d]))
                    values[h, t, d] = narrow_like(values, widen(block[1, slot, h, d]))


@kernel
def causal_softmax(scores: Any, span: int, start: int, window: int) -> None:
    """Softmax to base 2 in place. scores (rows, keys); row r is query start + r % span and sees no later key than its
    own, and the last `window` of those."""
    rows, keys = scores.shape
    for r in range(rows):
        row = scores[r]
        visible = start + r % span + 1
        begin = max(0, visible - window)
        largest = widen(row[begin])
        for t in range(begin, visible):
            largest = max(largest, widen(row[t]))
        total = np.float32(0.0)
        for t in range(begin, visible):
            weight = exp2(widen(row[t]) - largest)
            row[t] = narrow_like(scores, weight)
            total += weight
        factor = np.float32(1.0) / total
        for t in range(begin, visible):
            row[t] = narrow_like(scores, widen(row[t]) * factor)
        for t in range(begin):
            row[t] = narrow_like(scores, np.float32(0.0))
        for t in range(visible, keys):
            row[t] = narrow_like(scores, np.float32(0.0))


def prefill_attention(
    queries: torch.Tensor,
    pool: Any,
    layer: int,
    chunk: PrefillChunk,
    window: int,
    out: torch.Tensor,
) -> None:
    """out[rows of the chunk] = causal attention of the chunk's queries, each over the last `window` tokens.

    queries (tokens, heads, head_dim) float32 of the whole batch, multiplied by log2(e) / sqrt(head_dim);
    pool the device pool as numpy; out (tokens, heads · head_dim) in the compute type.
    """
    kv_heads, dim = pool.shape[4], pool.shape[5]
    group = queries.shape[1] // kv_heads
    context = chunk.start + chunk.count
    keys = torch.empty(kv_heads, context, dim, dtype=out.dtype)
    values = torch.empty_like(keys)
    gather_context(pool, layer, chunk.block_table, as_numpy(keys), as_numpy(values))
    for offset in range(0, chunk.count, SPAN):
        span = min(SPAN, chunk.count - offset)
        row = chunk.first_row + offset
        end = chunk.start + offset + span
        begin = max(0, chunk.start + offset + 1 - window)
        folded = queries[row : row + span].view(span, kv_heads, group, dim).permute(1, 2, 0, 3)
        folded = folded.reshape(kv_heads, group * span, dim).to(out.dtype)
        scores = torch.bmm(folded, keys[:, begin:end].transpose(1, 2))
        causal_softmax(as_numpy(scores.view(-1, end - begin)), span, end - span - begin, window)
        mixed = torch.bmm(scores, values[:, begin:end]).view(kv_heads, group, span, dim)
        out[row : row + span].view(span, kv_heads, group, dim).copy_(mixed.permute(2, 0, 1, 3))
