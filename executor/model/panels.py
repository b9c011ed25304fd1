"""A linear layer's weight laid out for `panel_linear`: panels of 16 output columns, the inputs in a row.

A panel is read from its first byte to its last, once for each tile of tokens. In a bfloat16 panel two columns share
a 32-bit word (column j in the low half, column j + 8 in the high half), so that one shift and one mask widen sixteen.
"""

from __future__ import annotations

from typing import Any

import torch

from superinfer.executor.model.kernels import as_numpy, kernel

LANES = 8
"""Floats of a vector register of AVX2."""
PANEL_COLUMNS = 2 * LANES
GROUP_PANELS = 4
"""Panels are padded to a multiple of this, the most that the kernel takes at once."""
INPUT_STEP = 4
"""Inputs that one turn of the kernel's inner loop takes."""

BFLOAT16, FLOAT32, INT8 = range(3)
"""Kinds of panels; those of int8 have a layout of their own, `int8_panels`."""
ELEMENT_BYTES = (2, 4, 1)


def supports(inputs: int) -> bool:
    """True where rows of this many elements can be cut into whole steps."""
    return inputs % INPUT_STEP == 0


def padded_columns(outputs: int) -> int:
    """Columns of the packed weight, padding included."""
    step = GROUP_PANELS * PANEL_COLUMNS
    return -(-outputs // step) * step


def pack_panels(weight: torch.Tensor) -> torch.Tensor:
    """weight (outputs, inputs), bfloat16 or float32 → its panels in one row, padded with zero columns."""
    outputs, inputs = weight.shape
    columns = padded_columns(outputs)
    packed = torch.empty(columns * inputs, dtype=weight.dtype)
    packed[outputs // PANEL_COLUMNS * PANEL_COLUMNS * inputs :] = 0.0
    panels = (columns // PANEL_COLUMNS, inputs)
    if weight.dtype == torch.bfloat16:
        by_half = packed.view(*panels, LANES, 2).transpose(2, 3)
    else:
        by_half = packed.view(*panels, 2, LANES)
    _fill_panels(as_numpy(weight.contiguous()), as_numpy(by_half))
    return packed


@kernel
def _fill_panels(weight: Any, panels: Any) -> None:
    """weight (outputs, inputs) → panels (panel, input, half, column within the half)."""
    outputs, inputs = weight.shape
    for o in range(outputs):
        column = panels[o // PANEL_COLUMNS, :, o % PANEL_COLUMNS // LANES, o % LANES]
        for i in range(inputs):
            column[i] = weight[o, i]
