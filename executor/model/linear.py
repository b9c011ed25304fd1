"""A linear layer that hides how its weight is stored and which kernel multiplies it.

In float32 a weight is packed into the panels of `panel_linear`, as bfloat16 where the checkpoint stores that: the same
products for half the bytes. On CPUs for which that kernel is not the best for many tokens (no AVX2) those go to oneDNN
with a weight packed once, or to torch's own product where oneDNN cannot pack, for a second copy of the weight. In
bfloat16 all go there. Weights of eight bits are there for panels alone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from superinfer.executor.model.kernels import as_numpy
from superinfer.executor.model.panel_linear import panel_linear_kernel
from superinfer.executor.model.panel_tiles import tiles_fill_vectors
from superinfer.executor.model.panels import (
    BFLOAT16,
    FLOAT32,
    GROUP_PANELS,
    INT8,
    PANEL_COLUMNS,
    pack_panels,
    padded_columns,
    supports,
)

FloatArray = npt.NDArray[np.float32]

PARTS = 16
"""Into which a layer is cut for whoever wants to be told how far it is: some megabytes of a vocabulary's head."""
FEW_TOKENS = 16
"""Up to this many, half the bytes of a weight beat wider vectors."""


def packing_works(dtype: torch.dtype) -> bool:
    """True where oneDNN can prepack a weight of this type on this CPU."""
    if not torch.backends.mkldnn.is_available():
        return False
    try:
        probe = torch.zeros(32, 32, dtype=dtype)
        packed = torch.ops.mkldnn._reorder_linear_weight(probe, 32)
        torch.ops.mkldnn._linear_pointwise.default(probe, packed, None, "none", [], "")
    except (RuntimeError, AttributeError):
        return False
    return True


class Linear:
    """y = x · weightᵀ + bias; weight (out, in) as stored, x and y in the compute type."""

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        dtype: torch.dtype,
        *,
        packed: bool,
        panels_only: bool | None = None,
        keep_output: bool = False,
        panels: torch.Tensor | None = None,
    ) -> None:
        """`packed`: oneDNN may pack. `panels_only`: no other kernel, whatever the size; None leaves it to the CPU.

        `keep_output`: the next call may overwrite this one's result, which saves fresh pages for wide layers.
        `panels`: the weight as `pack_panels` or `pack_int8_panels` laid it out before; of `weight` the shape is then
        enough, and for `pack_panels` the type.
        """
        outputs, inputs = weight.shape
        self._outputs, self._columns = outputs, padded_columns(outputs)
        self._bias = None if bias is None else bias.to(dtype)
        self._packed = packed
        self._weight: torch.Tensor | None = None
        self._panels: torch.Tensor | None = None
        self._kept = torch.empty(0, self._columns) if keep_output else None
        panels_only = tiles_fill_vectors() if panels_only is None else panels_only
        narrow = weight.dtype == torch.bfloat16
        if panels is not None and panels.dtype == torch.int8:
            self._panels, panels_only = panels, True
            self._panels_array = as_numpy(panels)
            self._panels_kernel = panel_linear_kernel(INT8)
        elif dtype == torch.float32 and supports(inputs) and (panels_only or narrow):
            self._panels = pack_panels(weight if narrow else weight.to(dtype)) if panels is None else panels
            self._panels_array = as_numpy(self._panels)
            self._panels_kernel = panel_linear_kernel(BFLOAT16 if narrow else FLOAT32)
        if self._panels is None or not panels_only:
            converted = weight.to(dtype)
            self._weight = torch.ops.mkldnn._reorder_linear_weight(converted, 32) if packed else converted

    @property
    def panels(self) -> torch.Tensor | None:
        """The weight as the panel kernel reads it; None where that does not serve this layer."""
        return self._panels

    def __call__(self, x: torch.Tensor, moved: Callable[[float], None] | None = None) -> torch.Tensor:
        """x (tokens, in), contiguous → (tokens, out). `moved` is told after each part which share of the weight that
        has read: parts of a wide layer, where its kernel allows it.
        """
        tokens = x.shape[0]
        if self._panels is not None and (self._weight is None or tokens <= FEW_TOKENS):
            out = self._output(tokens)
            if moved is None:
                self._panels_kernel(x.numpy(), self._panels_array, out.numpy())
            else:
                self._by_parts(x.numpy(), out.numpy(), moved)
            if self._columns != self._outputs:
                out = out[:, : self._outputs].contiguous()
            return out if self._bias is None else out.add_(self._bias)
        if self._packed:
            y: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self._weight, self._bias, "none", [], "")
        else:
            assert self._weight is not None
            y = F.linear(x, self._weight, self._bias)
        if moved is not None:
            moved(1.0)
        return y

    def _by_parts(self, x: FloatArray, out: FloatArray, moved: Callable[[float], None]) -> None:
        """out = x · weightᵀ, some panels after the other."""
        columns = GROUP_PANELS * PANEL_COLUMNS
        groups = self._columns // columns
        size, begin = len(self._panels_array) // groups, 0
        for part in range(1, PARTS + 1):
            end = part * groups // PARTS
            if end == begin:
                continue
            piece = np.empty((len(x), (end - begin) * columns), np.float32)
            self._panels_kernel(x, self._panels_array[begin * size : end * size], piece)
            out[:, begin * columns : end * columns] = piece
            moved((end - begin) / groups)
            begin = end

    def _output(self, tokens: int) -> torch.Tensor:
        if self._kept is None:
            return torch.empty(tokens, self._columns)
        if len(self._kept) < tokens:
            self._kept = torch.empty(tokens, self._columns)
        return self._kept[:tokens]
