"""Weights in the layout that kernels read, kept on disk and mapped into memory: a worker starts without packing them.

One file for each checkpoint, `weights/` in the cache directory: the length of an index and a checksum of all that
follows (8 bytes each, little-endian), the index (msgpack: name → offset, bytes and type), then the tensors, each at a
multiple of a page. Workers of one machine share its pages. A file is used for exactly the checkpoint (paths, sizes and
times of its files) and the layout that it was made from; one whose checksum is wrong is made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import Annotated

import msgspec
import torch

from superinfer.executor.model.file_checksum import checksum
from superinfer.profiler.cache import cache_dir

LAYOUT = 2
"""To be raised whenever `panels.pack_panels` lays weights out in another way, or this file does."""

PAGE_BYTES = 4096
_PREFIX_BYTES = 16
ABANDONED_AFTER_S = 3600.0
"""Nobody writes so long at one file."""

_POPULATE_READ = 22
"""MADV_POPULATE_READ of Linux 5.14: read all pages now rather than one fault at a time."""


_Size = Annotated[int, msgspec.Meta(ge=0)]


class _Entry(msgspec.Struct, array_like=True):
    offset: _Size
    length: _Size
    dtype: str


class PackedWeights:
    """What was kept for a checkpoint, or an empty place to keep it in; None for `path` keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._index: dict[str, _Entry] = {}
        self._map: mmap.mmap | None = None
        self._start = 0
        self._new: dict[str, torch.Tensor] = {}
        if path is not None:
            with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
                self._open(path)

    def get(self, name: str, elements: int, dtype: torch.dtype) -> torch.Tensor | None:
        """The kept tensor, to be read only; None where there is none of this size and type."""
        entry = self._index.get(name)
        if entry is None or self._map is None or entry.dtype != str(dtype) or entry.length != elements * dtype.itemsize:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that it cannot be written is what is wanted
            return torch.frombuffer(self._map, dtype=dtype, count=elements, offset=self._start + entry.offset)

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Keep a tensor from `save` on."""
        if self._path is not None:
            self._new[name] = tensor

    def save(self) -> None:
        """Write what was added, in place of what older versions of the checkpoint left; nothing without room."""
        if self._path is None or not self._new:
            return
        new, self._new = self._new, {}
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._remove_abandoned(self._path.parent)
            self._write(self._path, new)
            for other in self._path.parent.glob(self._path.name.rpartition("--")[0] + "--*.packed"):
                if other != self._path:
                    other.unlink(missing_ok=True)

    def _open(self, path: Path) -> None:
        with path.open("rb") as file:
            length, expected = (int.from_bytes(file.read(8), "little") for _ in range(2))
            if length > path.stat().st_size:
                raise ValueError("the file is not as long as its own index")
            index = msgspec.msgpack.decode(file.read(length), type=dict[str, _Entry])
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        start = _whole_pages(_PREFIX_BYTES + length)
        if any(start + entry.offset + entry.length > len(mapped) for entry in index.values()):
            return
        with contextlib.suppress(OSError, ValueError):
            mapped.madvise(_POPULATE_READ)
        if checksum(mapped, _PREFIX_BYTES) != expected:
            return
        self._index, self._map, self._start = index, mapped, start

    @staticmethod
    def _remove_abandoned(folder: Path) -> None:
        """What a process that was killed while it wrote has left: hundreds of megabytes that nobody would miss."""
        for partial in folder.glob("*.partial"):
            with contextlib.suppress(OSError):
                if time.time() - partial.stat().st_mtime > ABANDONED_AFTER_S:
                    partial.unlink()

    @staticmethod
    def _write(path: Path, tensors: dict[str, torch.Tensor]) -> None:
        index: dict[str, _Entry] = {}
        offset = 0
        for name, tensor in tensors.items():
            index[name] = _Entry(offset, tensor.nbytes, str(tensor.dtype))
            offset = _whole_pages(offset + tensor.nbytes)
        header = msgspec.msgpack.encode(index)
        start = _whole_pages(_PREFIX_BYTES + len(header))
        descriptor, partial = tempfile.mkstemp(dir=path.parent, suffix=".partial")
        try:
            with os.fdopen(descriptor, "w+b") as file:
                file.write(len(header).to_bytes(8, "little").ljust(_PREFIX_BYTES, b"\0") + header)
                for name, tensor in tensors.items():
                    file.seek(start + index[name].offset)
                    file.write(memoryview(tensor.view(torch.uint8).numpy()))
                file.truncate(start + offset)
                file.flush()
                with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                    file.seek(8)
                    file.write(checksum(mapped, _PREFIX_BYTES).to_bytes(8, "little"))
                file.flush()
                os.fsync(file.fileno())  # a rename must not reach the disk before what it publishes
            os.replace(partial, path)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise


def packed_weights_path(model_dir: Path, stored: torch.dtype) -> Path:
    """Where the packed weights of this checkpoint belong; another name whenever its files, type or layout change."""
    directory = model_dir.resolve()
    files = sorted(directory.glob("*.safetensors"))
    stamps = [(file.name, stat.st_size, stat.st_mtime_ns) for file in files for stat in (file.stat(),)]
    place = hashlib.sha256(repr((str(directory), str(stored))).encode()).hexdigest()[:12]
    state = hashlib.sha256(repr((LAYOUT, stamps)).encode()).hexdigest()[:12]
    return cache_dir() / "weights" / f"{directory.name}--{place}--{state}.packed"


def _whole_pages(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES
