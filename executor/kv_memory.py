"""KV blocks of several domains in one range of addresses, in memory that outlives the workers which write to it.

Each pool is an anonymous file (memfd, made by `kv_pools`) that the engine has and its workers inherit: it has no name
that a crash could leave behind, and the kernel frees it when the last process that has it ends. A worker maps its own
pools for writing and those of the others for reading alone, when it first reads a block of theirs: a stray write
cannot damage what another domain computed. Every pool has its place by its number, so that a block has one address
offset everywhere and a survivor goes on with a dead worker's blocks where they lie, without a copy.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from superinfer.contracts.errors import ResourceError
from superinfer.scheduler.blocks import SEGMENT_BITS

_PROT_NONE = 0
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_MAP_FAILED = ctypes.c_void_p(-1).value
_SEALS = 0x0001 | 0x0002 | 0x0004  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW
_ADD_SEALS = 1033

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class KVMemory:
    """One worker's view of all pools: `array[block]` is the block of that number, wherever it lies.

    `shape` is that of a block. Memory is taken as blocks are first written to.
    """

    def __init__(self, pools: list[int], shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        """Reserve addresses. Raises ResourceError where the process may not have so many."""
        self._pools = pools
        self._block_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self._stride_bytes = self._block_bytes << SEGMENT_BITS
        self._mapped: set[int] = set()
        self._bytes = self._stride_bytes * len(pools)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._address = _map(None, self._bytes, _PROT_NONE, flags, -1)
        view = (ctypes.c_byte * self._bytes).from_address(self._address)
        self.array: npt.NDArray[Any] = np.frombuffer(memoryview(view), dtype).reshape(
            len(pools) << SEGMENT_BITS, *shape
        )

    def blocks(self, pool: int) -> int:
        """How many blocks the pool has; 0 before anybody has sized it."""
        return os.fstat(self._pools[pool]).st_size // self._block_bytes

    def open(self, pool: int, blocks: int, *, outlives: bool = True) -> None:
        """Map a pool of this worker's own for writing; the first to do so gives it its size, for good.

        One that does not outlive the worker is memory of its own, which nobody else can read.
        """
        if blocks == 0:
            return
        if blocks > 1 << SEGMENT_BITS:
            raise ValueError(f"a pool has at most {1 << SEGMENT_BITS} blocks, not {blocks}")
        if not outlives:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED
            writable = mmap.PROT_READ | mmap.PROT_WRITE
            _map(self._address + pool * self._stride_bytes, blocks * self._block_bytes, writable, flags, -1)
            self._mapped.add(pool)
            return
        if self.blocks(pool) == 0:
            os.ftruncate(self._pools[pool], blocks * self._block_bytes)
            # A file that shrank under a reader would kill it.
            fcntl.fcntl(self._pools[pool], _ADD_SEALS, _SEALS)
        self._map_pool(pool, mmap.PROT_READ | mmap.PROT_WRITE)

    def reach(self, blocks: list[int]) -> None:
        """Make sure that these blocks can be read, whoever's they are."""
        for pool in {block >> SEGMENT_BITS for block in blocks} - self._mapped:
            self._map_pool(pool, mmap.PROT_READ)

    def close(self) -> None:
        """Give the addresses back; nobody may look at `array` any more."""
        if self._bytes:
            _libc.munmap(self._address, self._bytes)
            self._bytes = 0

    def _map_pool(self, pool: int, protection: int) -> None:
        size = os.fstat(self._pools[pool]).st_size
        _map(
            self._address + pool * self._stride_bytes, size, protection, mmap.MAP_SHARED | _MAP_FIXED, self._pools[pool]
        )
        self._mapped.add(pool)


def _map(address: int | None, size: int, protection: int, flags: int, file: int) -> int:
    found = _libc.mmap(address, size, protection, flags, file, 0)
    if found is None or found == _MAP_FAILED:
        reason = os.strerror(ctypes.get_errno())
        raise ResourceError(
            f"KV cache: {size / 2**30:.0f} GiB of addresses for memory that outlives a worker were refused: {reason}; "
            "raise the limit (ulimit -v unlimited) or switch checkpoints off"
        )
    return int(found)
