"""Causal attention of a prefill chunk in float32, both products through the tiles of `panel_linear`.

Keys and values of one head are gathered from the cache straight into panels. Six query rows (twelve with AVX512; tokens
by the query heads that share the key head) then meet exactly the panels of keys from the first to the last they see, so
no masked work is done but within a panel. The scores of a tile stay in the first cache levels. Every sum runs in the
same order however the prompt was cut into chunks: a token's result does not depend on it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from superinfer.executor.model.batch import PrefillChunk
from superinfer.executor.model.decode_attention import softmax_weights
from superinfer.executor.model.kernels import kernel, widen
from superinfer.executor.model.panel_tiles import TILE_TOKENS, WIDE_TILE_TOKENS, has_wide_tiles, tile_product
from superinfer.executor.model.panels import FLOAT32, INPUT_STEP, PANEL_COLUMNS
from superinfer.executor.model.vectors import LINE_BYTES

FloatArray = npt.NDArray[np.float32]
PANEL_ROW_BYTES = 4 * PANEL_COLUMNS
STEP_BYTES = INPUT_STEP * PANEL_ROW_BYTES
ROWS, PANELS = (WIDE_TILE_TOKENS, 2) if has_wide_tiles() else (TILE_TOKENS, 1)
"""Of a tile."""


def supports(head_dim: int) -> bool:
    """True where a head's values can be cut into whole panels."""
    return head_dim % PANEL_COLUMNS == 0


class PrefillScratch:
    """Work space for contexts of up to `max_tokens`; its pages are taken when they are first used."""

    def __init__(self, max_tokens: int, head_dim: int) -> None:
        panels = -(-max_tokens // PANEL_COLUMNS)
        self.keys = _floats(panels, head_dim, PANEL_COLUMNS)
        self.values = _floats(head_dim // PANEL_COLUMNS, panels * PANEL_COLUMNS, PANEL_COLUMNS)
        self.scores = _floats(ROWS * panels * PANEL_COLUMNS)
        self.queries = _floats(ROWS, head_dim)
        self.mixed = _floats(ROWS, head_dim)


def _floats(*shape: int) -> FloatArray:
    """Work space that begins a cache line: a panel's row is a whole one, and a vector of AVX512 reads it at once."""
    size = 4 * math.prod(shape)
    space = np.empty(size + LINE_BYTES, np.uint8)
    begin = -space.ctypes.data % LINE_BYTES
    return space[begin : begin + size].view(np.float32).reshape(shape)


@kernel
def gather_panels(
    pool: Any, layer: int, head: int, block_table: Any, begin: int, context: int, keys: Any, values: Any
) -> None:
    """Keys and values [begin, context) of a head at their place in the panels; `begin` starts a panel, and values are
    padded with zeros to a whole one."""
    block_size, dim = pool.shape[3], pool.shape[5]
    for c in range(begin, context):
        block = pool[block_table[c // block_size], layer]
        key, value = block[0, c % block_size, head], block[1, c % block_size, head]
        column = keys[c // PANEL_COLUMNS, :, c % PANEL_COLUMNS]
        for d in range(dim):
            column[d] = widen(key[d])
        for p in range(dim // PANEL_COLUMNS):
            for d in range(PANEL_COLUMNS):
                values[p, c, d] = widen(value[p * PANEL_COLUMNS + d])
    padded = (context + PANEL_COLUMNS - 1) // PANEL_COLUMNS * PANEL_COLUMNS
    for p in range(dim // PANEL_COLUMNS):
        for c in range(context, padded):
            for d in range(PANEL_COLUMNS):
                values[p, c, d] = np.float32(0.0)


@kernel
def attend_tile(
    queries: Any, keys: Any, values: Any, visible: Any, window: int, scores: Any, mixed: Any, totals: Any
) -> None:
    """mixed = unnormalised attention of a tile of queries, of which row i sees the last `window` of `visible[i]` keys.

    totals gets the sums to divide by; scores is scratch.
    """
    dim = queries.shape[1]
    first = max(0, visible[0] - window) // PANEL_COLUMNS
    panels = (visible[ROWS - 1] + PANEL_COLUMNS - 1) // PANEL_COLUMNS - first
    columns = panels * PANEL_COLUMNS
    query, row_of_scores = queries.ctypes.data, scores.ctypes.data
    source, target, stride = keys.ctypes.data + first * dim * PANEL_ROW_BYTES, scores.ctypes.data, dim * PANEL_ROW_BYTES
    for _ in range(panels // PANELS):
        ahead = source + PANELS * stride
        tile_product(query, dim, source, stride, target, columns, ahead, STEP_BYTES, ROWS, PANELS, FLOAT32)
        source = ahead
        target += PANELS * PANEL_ROW_BYTES
    if PANELS == 2 and panels % 2:
        tile_product(query, dim, source, stride, target, columns, source, 0, ROWS, 1, FLOAT32)
    for i in range(ROWS):
        row = i * columns
        begin = row + max(0, visible[i] - window) - first * PANEL_COLUMNS
        end = row + visible[i] - first * PANEL_COLUMNS
        totals[i] = softmax_weights(scores[begin:end])
        for c in range(row, begin):
            scores[c] = np.float32(0.0)
        for c in range(end, row + columns):
            scores[c] = np.float32(0.0)
    source, target = values.ctypes.data + first * PANEL_COLUMNS * PANEL_ROW_BYTES, mixed.ctypes.data
    stride = values.shape[1] * PANEL_ROW_BYTES
    for _ in range(dim // PANEL_COLUMNS // PANELS):
        ahead = source + PANELS * stride
        tile_product(row_of_scores, columns, source, stride, target, dim, ahead, STEP_BYTES, ROWS, PANELS, FLOAT32)
        source = ahead
        target += PANELS * PANEL_ROW_BYTES
    if PANELS == 2 and dim // PANEL_COLUMNS % 2:
        tile_product(row_of_scores, columns, source, stride, target, dim, source, 0, ROWS, 1, FLOAT32)


@kernel
def _panel_prefill(
    queries: Any, pool: Any, layer: int, block_table: Any, start: int, first_row: int, count: int, window: int,
    out: Any, keys: Any, values: Any, scores: Any, tile_queries: Any, mixed: Any,
) -> None:  # fmt: skip
    kv_heads, dim = pool.shape[4], pool.shape[5]
    group = queries.shape[1] // kv_heads
    rows = count * group
    visible = np.empty(ROWS, np.int64)
    totals = np.empty(ROWS, np.float32)
    begin = max(0, start + 1 - window) // PANEL_COLUMNS * PANEL_COLUMNS
    for h in range(kv_heads):
        gather_panels(pool, layer, h, block_table, begin, start + count, keys, values)
        for first in range(0, rows, ROWS):
            for i in range(ROWS):
                # Past the end the last row is repeated, and its result not used.
                row = min(first + i, rows - 1)
                visible[i] = start + row // group + 1
                source = queries[first_row + row // group, h * group + row % group]
                for d in range(dim):
                    tile_queries[i, d] = source[d]
            attend_tile(tile_queries, keys, values, visible, window, scores, mixed, totals)
            for i in range(min(ROWS, rows - first)):
                row = first + i
                factor = np.float32(1.0) / totals[i]
                target = out[first_row + row // group]
                offset = (h * group + row % group) * dim
                for d in range(dim):
                    target[offset + d] = mixed[i, d] * factor


def panel_prefill(
    queries: FloatArray, pool: npt.NDArray[Any], layer: int, chunk: PrefillChunk, window: int, out: FloatArray,
    scratch: PrefillScratch,
) -> None:  # fmt: skip
    """out[rows of the chunk] = causal attention of the chunk's queries, each over the last `window` tokens.

    queries (tokens, heads, head_dim) of the whole batch, float32, multiplied by log2(e) / sqrt(head_dim); pool the
    device pool, float32 or bfloat16 (as uint16); out (tokens, heads · head_dim) float32; all contiguous, with
    `supports(head_dim)`.
    """
    _panel_prefill(
        queries, pool, layer, chunk.block_table, chunk.start, chunk.first_row, chunk.count, window, out,
        scratch.keys, scratch.values, scratch.scores, scratch.queries, scratch.mixed,
    )  # fmt: skip
