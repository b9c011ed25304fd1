"""A directory in the cache that either is there in full or is not: built aside under a lock, then renamed."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from superinfer.contracts.errors import ModelError

MANIFEST = "manifest.json"


def is_complete(directory: Path, recipe: str) -> bool:
    """True where `directory` was published by this `recipe` and every file still has the size it had then."""
    try:
        manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        sizes: dict[str, int] = manifest["sizes"]
        return manifest["recipe"] == recipe and all(
            (directory / name).stat().st_size == size for name, size in sizes.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def ensure(directory: Path, recipe: str, build: Callable[[Path], None]) -> Path:
    """Return `directory`, having `build` fill it first unless a complete one of this `recipe` is there.

    `build` gets an empty directory on the same file system. Several processes may ask at once: one builds and
    the others wait for it. What a killed process left behind is removed. Raises ModelError when the cache
    cannot be written, and lets errors of `build` through with nothing published.
    """
    if is_complete(directory, recipe):
        return directory
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with _lock(directory.with_name(f".{directory.name}.lock")):
            if not is_complete(directory, recipe):
                _build_and_publish(directory, recipe, build)
    except OSError as error:
        raise ModelError(
            f"the model cache {directory.parent} cannot be written: {error}; "
            "free space there, or set SUPERINFER_CACHE to a directory that can be written"
        ) from None
    return directory


def _build_and_publish(directory: Path, recipe: str, build: Callable[[Path], None]) -> None:
    prefix = f".{directory.name}.partial-"
    for leftover in directory.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(prefix=prefix, dir=directory.parent))
    try:
        content = partial / "content"
        content.mkdir()
        build(content)
        sizes = {file.name: file.stat().st_size for file in content.iterdir()}
        manifest = {"recipe": recipe, "sizes": sizes}
        (content / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        for file in content.iterdir():
            _flush_to_disk(file)
        if directory.exists():
            directory.rename(partial / "replaced")
        content.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _flush_to_disk(file: Path) -> None:
    """A rename must not reach the disk before the contents it publishes."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _lock(file: Path) -> Iterator[None]:
    """Hold `file` exclusively; the kernel lets go of it when the process dies, however it dies."""
    with file.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
