"""What SuperInfer keeps on disk between runs: compiled kernels, packed weights, converted models, measured profiles.

Kernels are numba's: compiled for one CPU (name and vector extensions), one version of the source and one set of
argument types, each in a file of its own that is used for exactly those. They lie beside the source or, where that
cannot be written or $NUMBA_CACHE_DIR says so, in numba's own folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from superinfer.profiler.cache import cache_dir

Kind = Literal["kernels", "weights", "models", "profiles"]
KINDS: tuple[Kind, ...] = get_args(Kind)
REBUILT_IN_SECONDS: tuple[Kind, ...] = ("kernels", "weights")
_KERNEL_ENDINGS = (".nbi", ".nbc")
_WITH_KERNELS = ("superinfer.profiler", "superinfer.scheduler", "superinfer.executor")


@dataclass(frozen=True, slots=True)
class Kept:
    """Files of one kind in one folder."""

    kind: Kind
    folder: Path
    files: int
    size_bytes: int


def kept(kinds: tuple[Kind, ...] = KINDS) -> list[Kept]:
    """What lies where, folders without any left out."""
    found = []
    for kind in kinds:
        for folder in _folders(kind):
            sizes = [file.stat().st_size for file in _files(kind, folder)]
            if sizes:
                found.append(Kept(kind, folder, len(sizes), sum(sizes)))
    return found


def clean(kinds: tuple[Kind, ...]) -> list[Kept]:
    """Remove everything of these kinds; what was removed. What runs keeps what it has loaded."""
    removed = kept(kinds)
    for each in removed:
        if each.kind == "kernels":
            for file in _files(each.kind, each.folder):
                with contextlib.suppress(FileNotFoundError):  # somebody else cleans too
                    file.unlink()
        else:
            shutil.rmtree(each.folder, ignore_errors=True)
    return removed


def _folders(kind: Kind) -> Iterator[Path]:
    if kind != "kernels":
        yield cache_dir() / kind
        return
    sources = [folder for package in _WITH_KERNELS for folder in _package_folders(package)]
    for source in sources:
        yield source / "__pycache__"
    for root in _numba_roots():
        for source in sources:
            # As numba names it: the folder's own name and a digest of its whole path.
            digest = hashlib.sha1(str(source).encode(), usedforsecurity=False).hexdigest()
            yield root / f"{source.name}_{digest}"


def _package_folders(package: str) -> list[Path]:
    file = importlib.import_module(package).__file__
    assert file is not None
    top = Path(file).parent
    return [top, *sorted(path for path in top.rglob("*") if path.is_dir() and path.name != "__pycache__")]


def _numba_roots() -> list[Path]:
    roots = [Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "numba"]
    if explicit := os.environ.get("NUMBA_CACHE_DIR"):
        roots.insert(0, Path(explicit))
    return roots


def _files(kind: Kind, folder: Path) -> list[Path]:
    if kind == "kernels":
        return sorted(path for path in folder.glob("*") if path.suffix in _KERNEL_ENDINGS)
    return sorted(path for path in folder.rglob("*") if path.is_file())
