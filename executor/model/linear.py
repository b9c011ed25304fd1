"""A linear layer that hides how its weight is stored: packed once for oneDNN where that works, plain elsewhere."""

from __future__ import annotations

import torch
import torch.nn.functional as F


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
    """y = x · weightᵀ + bias, with weight (out, in) in the compute type."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, *, packed: bool) -> None:
        self._bias = bias
        self._packed = packed
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, 32) if packed else weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x (tokens, in), contiguous → (tokens, out)."""
        if self._packed:
            y: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self._weight, self._bias, "none", [], "")
            return y
        return F.linear(x, self._weight, self._bias)
