"""The paged key/value cache: a device pool, a host pool for rotated sequences, and block copies between them.

Block-first layout (block, layer, k/v, slot, kv_head, head_dim): one block of all layers is one contiguous copy.
Paging after vLLM (arXiv 2309.06180). On a CPU both pools are main memory; the border between them is kept all the same.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from superinfer.contracts.errors import ResourceError
from superinfer.executor.kv_memory import KVMemory
from superinfer.executor.model.architecture import Architecture
from superinfer.executor.model.kernels import as_numpy
from superinfer.executor.model.memory import format_bytes
from superinfer.scheduler.blocks import SEGMENT_BITS, device_pool, host_pool

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
                + (" or --host-kv-memory" if host_blocks else "")
            )
        budget = kv_cache_bytes
        given = f"--kv-cache-memory gives {format_bytes(budget)}"
    elif host_blocks and host_bytes >= available_bytes:
        raise ResourceError(
            f"KV cache: --host-kv-memory asks for {format_bytes(host_bytes)}, "
            f"but only {format_bytes(available_bytes)} of memory is available; lower --host-kv-memory"
        )
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


class BlockStore(Protocol):
    """Where a worker's KV blocks lie: a device pool, a host pool, and copies between them.

    `array` holds the device blocks by number, `device_base` and `host_base` are the numbers of the first ones.
    """

    array: npt.NDArray[Any]
    device_base: int
    host_base: int
    device_blocks: int
    host_blocks: int

    def rotate_out(self, pairs: list[tuple[int, int]]) -> None:
        """Copy blocks device → host; pairs of (device block, host block)."""
        ...

    def rotate_in(self, pairs: list[tuple[int, int]]) -> None:
        """Copy blocks host → device; pairs of (host block, device block)."""
        ...

    def save_slots(self, parts: list[tuple[int, int, int, int]]) -> None:
        """Copy parts of blocks device → host: (device block, host block, first slot, slot after the last)."""
        ...

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        """Copy blocks to own device blocks; the sources may be another domain's."""
        ...

    def reach(self, blocks: list[int]) -> None:
        """Make sure that these blocks can be read."""
        ...


def block_shape(architecture: Architecture, block_size: int) -> tuple[int, ...]:
    """(layer, k/v, slot, kv_head, head_dim)."""
    return (architecture.layers, 2, block_size, architecture.kv_heads, architecture.head_dim)


def element_type(dtype: torch.dtype) -> np.dtype[Any]:
    """The numpy type in which elements of `dtype` travel; see `superinfer.executor.model.kernels`."""
    found: np.dtype[Any] = as_numpy(torch.empty(0, dtype=dtype)).dtype
    return found


class PrivateCache:
    """Two pools in this process's own memory, which end with it. Pages are touched as blocks are first used."""

    def __init__(
        self,
        architecture: Architecture,
        *,
        device_blocks: int,
        host_blocks: int,
        block_size: int,
        dtype: torch.dtype,
    ) -> None:
        self.device_blocks = device_blocks
        self.host_blocks = host_blocks
        self.device_base = self.host_base = 0
        shape = block_shape(architecture, block_size)
        # Zeros of numpy are pages that the system provides when they are first touched; torch would write them all.
        # One block more than the scheduler hands out, to warm kernels up with.
        self.array: npt.NDArray[Any] = np.zeros((device_blocks + 1, *shape), element_type(dtype))
        self.host: npt.NDArray[Any] = np.zeros((host_blocks, *shape), element_type(dtype))

    def rotate_out(self, pairs: list[tuple[int, int]]) -> None:
        """As in BlockStore."""
        _copy_blocks(self.array, self.host, pairs)

    def rotate_in(self, pairs: list[tuple[int, int]]) -> None:
        """As in BlockStore."""
        _copy_blocks(self.host, self.array, pairs)

    def save_slots(self, parts: list[tuple[int, int, int, int]]) -> None:
        """As in BlockStore."""
        _copy_slots(self.array, self.host, parts)

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        """As in BlockStore."""
        _copy_blocks(self.array, self.array, pairs)

    def reach(self, blocks: list[int]) -> None:
        """All blocks are here."""


class SharedCache:
    """This domain's two pools in memory that outlives the worker, beside those of the other domains.

    What an earlier worker of the domain left in the pools is kept, and so is their size. Where `device_outlives` is
    False the device pool is as an accelerator's memory: it ends with the worker, and what is to outlive it has to be
    copied to the host pool.
    """

    def __init__(
        self, memory: KVMemory, segment: int, *, device_blocks: int, host_blocks: int, device_outlives: bool = True
    ) -> None:
        self._memory = memory
        self.device_blocks = device_blocks
        self.host_blocks = host_blocks
        self.device_base = device_pool(segment) << SEGMENT_BITS
        self.host_base = host_pool(segment) << SEGMENT_BITS
        memory.open(device_pool(segment), device_blocks + 1, outlives=device_outlives)
        memory.open(host_pool(segment), host_blocks)
        self.array = memory.array

    def rotate_out(self, pairs: list[tuple[int, int]]) -> None:
        """As in BlockStore."""
        self.copy(pairs)

    def rotate_in(self, pairs: list[tuple[int, int]]) -> None:
        """As in BlockStore."""
        self.copy(pairs)

    def save_slots(self, parts: list[tuple[int, int, int, int]]) -> None:
        """As in BlockStore."""
        _copy_slots(self.array, self.array, parts)

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        """As in BlockStore."""
        self.reach([source for source, _ in pairs])
        _copy_blocks(self.array, self.array, pairs)

    def reach(self, blocks: list[int]) -> None:
        """As in BlockStore."""
        self._memory.reach(blocks)


def _copy_blocks(source: npt.NDArray[Any], target: npt.NDArray[Any], pairs: list[tuple[int, int]]) -> None:
    """Copy block by block: each is one contiguous run, and a gather would cost a second copy."""
    for source_block, target_block in pairs:
        target[target_block] = source[source_block]


def _copy_slots(source: npt.NDArray[Any], target: npt.NDArray[Any], parts: list[tuple[int, int, int, int]]) -> None:
    """Copy the slots of a block that a step or two have filled: a run for each layer's keys and values."""
    for source_block, target_block, first, end in parts:
        target[target_block, :, :, first:end] = source[source_block, :, :, first:end]
