"""In which type a model is stored, and in which it computes on this CPU.

`float32` and `bfloat16` name what is stored: the weights as they are multiplied, and the KV cache. A CPU without
bfloat16 products computes in float32 from what is stored: every product and sum is exact to float32, and half the bytes
are read.
"""

from __future__ import annotations

from functools import cache

import torch


@cache
def bfloat16_in_hardware() -> bool:
    """True where the CPU multiplies bfloat16 (AVX512-BF16 or AMX)."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def activation_dtype(stored: torch.dtype) -> torch.dtype:
    """The type of activations in a model that is stored as `stored` (float32 or bfloat16)."""
    return torch.bfloat16 if stored == torch.bfloat16 and bfloat16_in_hardware() else torch.float32
