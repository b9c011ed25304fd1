"""A checksum of large files at the speed of memory: it finds what a power cut, a full disk or a bad block leaves.

Sums of 64-bit words, one a chunk, then the CRC-32 of these in their order. Of a file with more than `MOST_BYTES` every
n-th chunk is summed, so that opening any file takes a bounded time.
"""

from __future__ import annotations

import mmap
import zlib

import numpy as np

CHUNK_BYTES = 1 << 16
MOST_BYTES = 1 << 28


def checksum(data: mmap.mmap | bytes, begin: int, seed: int = 0) -> int:
    """Of the bytes of `data` from `begin` on, which is a multiple of 8; what is left of a last word does not count."""
    words = np.frombuffer(data, np.uint64, offset=begin, count=(len(data) - begin) // 8)
    chunk = CHUNK_BYTES // 8
    whole = words[: len(words) // chunk * chunk].reshape(-1, chunk)
    every = max(1, -(-whole.nbytes // MOST_BYTES))
    sums = np.append(whole[::every].sum(axis=1, dtype=np.uint64), words[whole.size :].sum(dtype=np.uint64))
    return zlib.crc32(sums.tobytes(), seed)
