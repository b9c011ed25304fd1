"""The paged key/value cache: a device pool, a host pool for rotated sequences, and block copies between them.

Block-first layout (block, layer, k/v, slot, kv_head, head_dim): one block of all layers is one contiguous copy.
Paging after vLLM (arXiv 2309.06180). On a CPU both pools are main memory; the border between them is kept all the same.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from superinfer.contracts.errors import ResourceError
from superinfer.executor.model.architecture import Architecture
from superinfer.executor.model.kernels import as_numpy
from superinfer.executor.model.memory import format_bytes

FREE_MEMORY_SHARE = 0.25


def block_bytes(architecture: Architecture, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block of `block_size` tokens, all layers."""
    return block_size * architecture.kv_bytes_per_token(dtype.itemsize)


def plan_device_blocks(
    *,
    bytes_per_block: int,
    block_size: int,
    max_model_len: int,
    host_blocks: int,
    kv_cache_bytes: int | None,
    available_bytes: int,
) -> int:
    """How many blocks the device pool gets, decided before anything is allocated.

    `kv_cache_bytes` None takes a share of `available_bytes`. Raises ResourceError when the pools would not fit into
    the available memory, or would not hold one sequence of `max_model_len` tokens.
    """
    host_bytes = host_blocks * bytes_per_block
    needed_blocks = -(-max_model_len // block_size)
    needed = needed_blocks * bytes_per_block
    if kv_cache_bytes is not None:
        if kv_cache_bytes + host_bytes > available_bytes:
            raise ResourceError(
                f"KV cache: --kv-cache-memory asks for {format_bytes(kv_cache_bytes)}"
                + (f" and rotated sequences for {format_bytes(host_bytes)}" if host_blocks else "")
                + f", but only {format_bytes(available_bytes)} of memory is available; lower --kv-cache-memory"
            )
        budget = kv_cache_bytes
        given = f"--kv-cache-memory gives {format_bytes(budget)}"
    else:
        budget = int(max(available_bytes - host_bytes, 0) * FREE_MEMORY_SHARE)
        # A small machine may spend more than the share on the one sequence that makes it work at all.
        if budget < needed <= (available_bytes - host_bytes) // 2:
            budget = needed
        given = f"{format_bytes(available_bytes)} of memory is available, of which {format_bytes(budget)} may be used"
    if budget < needed:
        raise ResourceError(
            f"KV cache: one sequence of {max_model_len} tokens needs {format_bytes(needed)}, but {given}; "
            "raise --kv-cache-memory or lower --max-model-len"
        )
    return budget // bytes_per_block


class KVCache:
    """Two pools of blocks. Pages are touched as blocks are first used, so an unused pool costs nothing."""

    def __init__(
        self,
        architecture: Architecture,
        *,
        device_blocks: int,
        host_blocks: int,
        block_size: int,
        dtype: torch.dtype,
    ) -> None:
        self.block_size = block_size
        self.device_blocks = device_blocks
        self.host_blocks = host_blocks
        shape = (architecture.layers, 2, block_size, architecture.kv_heads, architecture.head_dim)
        self.device = _untouched_zeros((device_blocks, *shape), dtype)
        self.host = _untouched_zeros((host_blocks, *shape), dtype)
        self.device_array: npt.NDArray[Any] = as_numpy(self.device)

    def rotate_out(self, pairs: list[tuple[int, int]]) -> None:
        """Copy blocks device → host; pairs of (device block, host block)."""
        _copy_blocks(self.device, self.host, pairs)

    def rotate_in(self, pairs: list[tuple[int, int]]) -> None:
        """Copy blocks host → device; pairs of (host block, device block)."""
        _copy_blocks(self.host, self.device, pairs)


def _untouched_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Zeros whose pages the system provides when they are first touched; `torch.zeros` would write them all."""
    memory = np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)
    return torch.frombuffer(memory, dtype=dtype).view(shape) if len(memory) else torch.empty(shape, dtype=dtype)


def _copy_blocks(source: torch.Tensor, target: torch.Tensor, pairs: list[tuple[int, int]]) -> None:
    """Copy block by block: each is one contiguous run, and a gather would cost a second copy."""
    for source_block, target_block in pairs:
        target[target_block].copy_(source[source_block])
