"""Weights rounded to eight bits, in the panels of `panel_linear`: a scale for every few inputs of each output column.

A panel is a row of groups: the sixteen columns' scales as float32, then the sixteen bytes of each input of the group.
There is no zero point: a weight is its byte times its scale, rounded to float32 by whoever reads it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from superinfer.executor.model.kernels import kernel
from superinfer.executor.model.panels import PANEL_COLUMNS, padded_columns

GROUP_SHIFT = 5
GROUP_INPUTS = 1 << GROUP_SHIFT
"""Inputs of one scale."""
SCALE_BYTES = 4 * PANEL_COLUMNS
"""Of one group."""
LARGEST = 127
ROWS_AT_ONCE = 256 * PANEL_COLUMNS
"""Outputs whose rounding takes float32 copies at a time."""


def panel_size(inputs: int) -> int:
    """Bytes of one panel."""
    return PANEL_COLUMNS * inputs + -(-inputs // GROUP_INPUTS) * SCALE_BYTES


def int8_panels_size(outputs: int, inputs: int) -> int:
    """Bytes of the packed weight, scales and padding included."""
    return padded_columns(outputs) // PANEL_COLUMNS * panel_size(inputs)


def round_to_int8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """weight (outputs, inputs) → the nearest multiples (int8, of its shape) of scales (outputs, groups) float32.

    A scale is its group's largest magnitude / 127.
    """
    inputs = weight.shape[1]
    groups = F.pad(weight.float(), (0, -inputs % GROUP_INPUTS)).unflatten(1, (-1, GROUP_INPUTS))
    scales = groups.abs().amax(2, keepdim=True) / LARGEST
    numbers = (groups / scales.clamp(min=torch.finfo(torch.float32).tiny)).round()
    return numbers.to(torch.int8).flatten(1)[:, :inputs], scales[:, :, 0]


def pack_int8_panels(weight: torch.Tensor) -> torch.Tensor:
    """weight (outputs, inputs), of any float type → its panels in one row of int8, padded with zero columns."""
    outputs, inputs = weight.shape
    packed = torch.zeros(int8_panels_size(outputs, inputs), dtype=torch.int8)
    panels = packed.view(-1, panel_size(inputs)).numpy()
    for first in range(0, outputs, ROWS_AT_ONCE):
        numbers, scales = round_to_int8(weight[first : first + ROWS_AT_ONCE])
        _fill_panels(numbers.numpy(), scales.numpy(), panels[first // PANEL_COLUMNS :])
    return packed


@kernel
def _fill_panels(numbers: Any, scales: Any, panels: Any) -> None:
    """numbers (outputs, inputs) and scales (outputs, groups) → panels (panel, bytes)."""
    outputs, inputs = numbers.shape
    for o in range(outputs):
        panel, column = panels[o // PANEL_COLUMNS], o % PANEL_COLUMNS
        at = 0
        for group in range(scales.shape[1]):
            panel[at : at + SCALE_BYTES].view(np.float32)[column] = scales[o, group]
            at += SCALE_BYTES
            for i in range(group * GROUP_INPUTS, min((group + 1) * GROUP_INPUTS, inputs)):
                panel[at + column] = numbers[o, i]
                at += PANEL_COLUMNS
