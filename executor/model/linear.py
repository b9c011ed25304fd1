"""A linear layer that hides how its weight is stored and which kernel multiplies it.

Many tokens: oneDNN with a weight packed once, where it can pack this type, else torch's own. Few tokens in float32: the
bfloat16 kernel of `small_linear` where the checkpoint's weights are bfloat16, for half a copy more memory. On one AVX2
core (SmolLM2-135M, all linear layers) that kernel takes 23 ms instead of 63 at one token, 45 instead of 99 at eight,
86 instead of 108 at fourteen, and loses from about sixteen.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from superinfer.executor.model.kernels import as_numpy
from superinfer.executor.model.small_linear import small_linear_kernel, supports

FEW_TOKENS = 16


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

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype, *, packed: bool) -> None:
        outputs, inputs = weight.shape
        self._outputs = outputs
        self._bias = None if bias is None else bias.to(dtype)
        self._packed = packed
        self._narrow: torch.Tensor | None = None
        if dtype == torch.float32 and weight.dtype == torch.bfloat16 and supports(inputs):
            self._narrow = weight.contiguous()
            self._narrow_array = as_numpy(self._narrow)
        converted = weight.to(dtype)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(converted, 32) if packed else converted

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x (tokens, in), contiguous → (tokens, out)."""
        tokens, inputs = x.shape
        if self._narrow is not None and tokens <= FEW_TOKENS:
            out = torch.empty(tokens, self._outputs)
            small_linear_kernel(tokens, inputs)(x.numpy(), self._narrow_array, out.numpy())
            return out if self._bias is None else out.add_(self._bias)
        if self._packed:
            y: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self._weight, self._bias, "none", [], "")
            return y
        return F.linear(x, self._weight, self._bias)
