"""What all numba kernels share: compile options, and float32 or bfloat16 elements behind one pair of functions.

Numba has no bfloat16, so bfloat16 arrays travel as uint16; `widen` and `narrow_like` are picked by element type at
compile time. Kernels are compiled once and cached on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS: dict[str, Any] = {
    # NaN and infinity keep their meaning; only the order of sums and the fusing of products are free.
    "fastmath": {"reassoc", "contract", "arcp", "nsz", "afn"},
    "nogil": True,
    "error_model": "numpy",
    "cache": True,
}

LOG2_E = 1.4426950408889634


def kernel(function: Function) -> Function:
    """Compile `function` with the options common to all kernels."""
    compiled: Function = njit(**_OPTIONS)(function)
    return compiled


def as_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The tensor's memory as a numpy array, bfloat16 as uint16."""
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.uint16)
    array: np.ndarray[Any, Any] = tensor.numpy()
    return array


@intrinsic  # type: ignore[misc, unused-ignore]
def bits_to_float(_context: Any, bits: Any) -> Any:
    """A uint32's bits as float32."""

    def generate(_ctx: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic  # type: ignore[misc, unused-ignore]
def float_to_bits(_context: Any, number: Any) -> Any:
    """A float32's bits as uint32."""

    def generate(_ctx: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), generate


def widen(element: Any) -> Any:
    """A float32 or bfloat16 (uint16) element as float32. Only inside kernels."""
    raise NotImplementedError


def narrow_like(array: Any, number: Any) -> Any:
    """A float32 as an element of `array`, rounded to nearest even for bfloat16. Only inside kernels."""
    raise NotImplementedError


@overload(widen)
def _widen(element: Any) -> Any:
    # The inner functions repeat the annotations: numba compares the signatures.
    if element == types.float32:

        def same(element: Any) -> Any:
            return element

        return same
    if element == types.uint16:

        def from_bfloat16(element: Any) -> Any:
            return bits_to_float(np.uint32(element) << np.uint32(16))

        return from_bfloat16
    return None


@overload(narrow_like)
def _narrow_like(array: Any, number: Any) -> Any:
    if array.dtype == types.float32:

        def same(array: Any, number: Any) -> Any:
            return number

        return same
    if array.dtype == types.uint16:

        def round_to_bfloat16(array: Any, number: Any) -> Any:
            bits = float_to_bits(number)
            odd = (bits >> np.uint32(16)) & np.uint32(1)
            return np.uint16((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))

        return round_to_bfloat16
    return None


@kernel
def exp2(x: Any) -> Any:
    """2**x in float32, x ≤ 0 in all uses here; relative error under 2e-7. A polynomial, so that loops vectorise."""
    x = max(x, np.float32(-126.0))
    whole = np.floor(x + np.float32(0.5))
    f = x - whole
    p = np.float32(1.5403530e-4)
    p = p * f + np.float32(1.3333558e-3)
    p = p * f + np.float32(9.6181291e-3)
    p = p * f + np.float32(5.5504109e-2)
    p = p * f + np.float32(2.4022651e-1)
    p = p * f + np.float32(6.9314718e-1)
    p = p * f + np.float32(1.0)
    return p * bits_to_float(np.uint32((np.int32(whole) + np.int32(127)) << np.int32(23)))
