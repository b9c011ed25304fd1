"""A linear layer for few tokens, bound by its weight's bytes: read as bfloat16, multiplied in float32.

Checkpoints store bfloat16; widened on the fly it gives the same products as a float32 copy for half the bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from superinfer.executor.model.kernels import kernel
from superinfer.executor.model.vectors import row_product

TOKEN_TILE = 8
"""Tokens that share one pass over a weight row; their sums fill the vector registers of AVX2."""
SMALLEST_LANES = 8


def _lanes(tokens: int, inputs: int) -> int:
    """Elements of a weight row taken at once: the fewer tokens, the more, so that enough sums are in flight."""
    wanted = {1: 64, 2: 32, 3: 32, 4: 16}.get(tokens, SMALLEST_LANES)
    return min(wanted, inputs & -inputs)


def supports(inputs: int) -> bool:
    """True where rows of this many elements can be cut into whole vectors."""
    return inputs % SMALLEST_LANES == 0


@cache
def small_linear_kernel(tokens: int, inputs: int) -> Callable[..., None]:
    """The kernel for `tokens` rows of `inputs` elements: whole tiles of tokens, then the rest."""
    rest = tokens % TOKEN_TILE
    tile_lanes, rest_lanes = _lanes(TOKEN_TILE, inputs), _lanes(rest, inputs)
    return _kernel(rest, tile_lanes, rest_lanes)


@cache
def _kernel(rest: int, tile_lanes: int, rest_lanes: int) -> Callable[..., None]:
    @kernel
    def small_linear(x: Any, weight: Any, out: Any) -> None:
        """out = x · weightᵀ. x (tokens, inputs) float32, weight (outputs, inputs) bfloat16, out (tokens, outputs)."""
        tokens, inputs = x.shape
        outputs = weight.shape[0]
        tiles = tokens // TOKEN_TILE
        row = weight.ctypes.data
        for i in range(outputs):
            source = x.ctypes.data
            target = out.ctypes.data + 4 * i
            for _ in range(tiles):
                row_product(source, inputs, row, target, outputs, TOKEN_TILE, tile_lanes)
                source += TOKEN_TILE * inputs * 4
                target += TOKEN_TILE * outputs * 4
            row_product(source, inputs, row, target, outputs, rest, rest_lanes)
            row += inputs * 2

    return small_linear
