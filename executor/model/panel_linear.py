"""Matrix product of a few to a few hundred tokens with a weight in panels, one core, float32 sums.

For each panel all tokens go by in tiles of up to six: a tile times a panel is twelve sums, which fill the registers of
AVX2 and hide the latency of its multiply-add, so the weight is read from memory once a call however many tokens there
are. One to three tokens take several panels at once for the same twelve or eight sums. Meanwhile what comes next is
prefetched: the next panels, or a little of each where several are read at once and the CPU prefers it. Every output is
summed over its inputs in the same order whatever the tile: a token's result does not depend on what it is batched with.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from superinfer.executor.model.int8_panels import GROUP_INPUTS, SCALE_BYTES
from superinfer.executor.model.kernels import kernel
from superinfer.executor.model.panel_tiles import (
    TILE_TOKENS,
    WIDE_TILE_TOKENS,
    has_wide_tiles,
    tile_product,
    widen_inputs,
)
from superinfer.executor.model.panels import (
    BFLOAT16,
    ELEMENT_BYTES,
    FLOAT32,
    GROUP_PANELS,
    INPUT_STEP,
    INT8,
    PANEL_COLUMNS,
)
from superinfer.executor.model.vectors import LINE_BYTES

WIDE = has_wide_tiles()
MOST_ROWS = WIDE_TILE_TOKENS if WIDE else TILE_TOKENS
WIDEN_ABOVE = TILE_TOKENS if WIDE else 2 * TILE_TOKENS
"""With more tokens than this a panel of int8, and for wide tiles one of bfloat16, is widened once for all of its tiles,
which are at least of four."""


@kernel
def widen_panel(panel: int, inputs: int, floats: int) -> None:
    """The int8 panel at one address → the float32 panel at another."""
    for begin in range(0, inputs, GROUP_INPUTS):
        count = min(GROUP_INPUTS, inputs - begin)
        widen_inputs(panel + SCALE_BYTES, panel, floats, count, INT8)
        panel += SCALE_BYTES + count * PANEL_COLUMNS
        floats += count * PANEL_COLUMNS * 4


@kernel
def widened_tile(
    x: int, inputs: int, floats: int, out: int, columns: int, ahead: int, ahead_step: int, size: int
) -> None:
    """A tile of `size` rows times one float32 panel, at least four; of at least six times two where tiles are wide."""
    stride = 4 * PANEL_COLUMNS * inputs
    if WIDE:
        if size == 12:
            tile_product(x, inputs, floats, stride, out, columns, ahead, ahead_step, 12, 2, FLOAT32)
        elif size == 11:
            tile_product(x, inputs, floats, stride, out, columns, ahead, ahead_step, 11, 2, FLOAT32)
        elif size == 10:
            tile_product(x, inputs, floats, stride, out, columns, ahead, ahead_step, 10, 2, FLOAT32)
        elif size == 9:
            tile_product(x, inputs, floats, stride, out, columns, ahead, ahead_step, 9, 2, FLOAT32)
        elif size == 8:
            tile_product(x, inputs, floats, stride, out, columns, ahead, ahead_step, 8, 2, FLOAT32)
        elif size == 7:
            tile_product(x, inputs, floats, stride, out, columns, ahead, ahead_step, 7, 2, FLOAT32)
        else:
            tile_product(x, inputs, floats, stride, out, columns, ahead, ahead_step, 6, 2, FLOAT32)
    elif size == 6:
        tile_product(x, inputs, floats, stride, out, columns, ahead, ahead_step, 6, 1, FLOAT32)
    elif size == 5:
        tile_product(x, inputs, floats, stride, out, columns, ahead, ahead_step, 5, 1, FLOAT32)
    else:
        tile_product(x, inputs, floats, stride, out, columns, ahead, ahead_step, 4, 1, FLOAT32)


@cache
def panel_linear_kernel(kind: int) -> Callable[[Any, Any, Any], None]:
    """The kernel for panels of one `kind`, called with x, panels, out; all contiguous.

    x (tokens, inputs) float32 with `supports(inputs)`; panels as `pack_panels` or `pack_int8_panels` made them,
    bfloat16 as uint16; out (tokens, padded columns) float32.
    """
    element = ELEMENT_BYTES[kind]
    may_meet_floats = WIDE or kind == INT8

    @kernel
    def panel_linear(x: Any, weight: Any, out: Any) -> None:
        tokens, inputs = x.shape
        columns = out.shape[1]
        # As many panels at once as give a small tile enough sums.
        group = 1
        if tokens == 1:
            group = GROUP_PANELS
        elif tokens <= 3 or (WIDE and tokens > WIDEN_ABOVE):
            group = 2
        # Tiles as even as they can be: 7 tokens as 4 and 3, not as 6 and 1.
        most = TILE_TOKENS if tokens <= WIDEN_ABOVE else MOST_ROWS
        tiles = (tokens + most - 1) // most
        smaller = tokens // max(tiles, 1)
        larger_tiles = tokens - smaller * tiles
        stride = weight.nbytes // (columns // PANEL_COLUMNS)
        group_bytes = group * stride
        # Each tile prefetches its share of the next panels.
        ahead_step = group * INPUT_STEP * PANEL_COLUMNS * element // max(tiles, 1)
        ahead_share = group_bytes // max(tiles, 1)
        meets_floats = may_meet_floats and tokens > WIDEN_ABOVE
        widens = meets_floats and kind != FLOAT32
        floats = np.empty(group * PANEL_COLUMNS * inputs + LINE_BYTES // 4 if widens else 0, np.float32)
        widened = (floats.ctypes.data + LINE_BYTES - 1) // LINE_BYTES * LINE_BYTES
        panel = weight.ctypes.data
        column = out.ctypes.data
        for _ in range(columns // (group * PANEL_COLUMNS)):
            source, target, ahead = x.ctypes.data, column, panel + group_bytes
            if widens:
                for g in range(group):
                    narrow, wide = panel + g * stride, widened + 4 * g * PANEL_COLUMNS * inputs
                    if kind == INT8:
                        widen_panel(narrow, inputs, wide)
                    elif kind == BFLOAT16:
                        widen_inputs(narrow, 0, wide, inputs, BFLOAT16)
            for i in range(tiles):
                size = smaller + 1 if i < larger_tiles else smaller
                # Sizes are written out: a tile's is part of its code.
                if meets_floats:
                    floats_at = widened if widens else panel
                    widened_tile(source, inputs, floats_at, target, columns, ahead, ahead_step, size)
                elif size == 6:
                    tile_product(source, inputs, panel, stride, target, columns, ahead, ahead_step, 6, 1, kind)
                elif size == 5:
                    tile_product(source, inputs, panel, stride, target, columns, ahead, ahead_step, 5, 1, kind)
                elif size == 4:
                    tile_product(source, inputs, panel, stride, target, columns, ahead, ahead_step, 4, 1, kind)
                elif size == 3:
                    if group == 2:
                        tile_product(source, inputs, panel, stride, target, columns, ahead, ahead_step, 3, 2, kind)
                    else:
                        tile_product(source, inputs, panel, stride, target, columns, ahead, ahead_step, 3, 1, kind)
                elif size == 2:
                    tile_product(source, inputs, panel, stride, target, columns, ahead, ahead_step, 2, 2, kind)
                else:
                    tile_product(source, inputs, panel, stride, target, columns, ahead, ahead_step, 1, 4, kind)
                source += size * inputs * 4
                target += size * columns * 4
                ahead += ahead_share
            panel += group_bytes
            column += group * PANEL_COLUMNS * 4

    return panel_linear
