"""What the safetensors files of a model hold, from their headers alone, and whether they are whole."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from superinfer.contracts.errors import ModelError

LARGEST_HEADER_BYTES = 100_000_000
"""The format's own limit."""


_Size = Annotated[int, msgspec.Meta(ge=0)]


class _Tensor(msgspec.Struct, frozen=True):
    shape: list[_Size]
    data_offsets: tuple[_Size, _Size]


@dataclass(frozen=True)
class StoredWeights:
    """Elements and bytes of all tensors; `truncated` names the files that end too early: bytes held, bytes needed."""

    parameters: int
    tensor_bytes: int
    truncated: tuple[tuple[str, int, int], ...]

    @property
    def damage(self) -> str | None:
        """The first truncated file in words, or None."""
        if not self.truncated:
            return None
        name, held, needed = self.truncated[0]
        return f"{name} is truncated: it has {held:,} of {needed:,} bytes"


def stored_weights(directory: Path) -> StoredWeights | None:
    """Read the headers of a folder's *.safetensors; None where it has none. ModelError where a header is unreadable."""
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        return None
    parameters = tensor_bytes = 0
    truncated = []
    for file in files:
        header, start = _header(file)
        end = start
        for tensor in header.values():
            first, last = tensor.data_offsets
            parameters += math.prod(tensor.shape)
            tensor_bytes += last - first
            end = max(end, start + last)
        if (held := file.stat().st_size) < end:
            truncated.append((file.name, held, end))
    return StoredWeights(parameters, tensor_bytes, tuple(truncated))


def _header(file: Path) -> tuple[dict[str, _Tensor], int]:
    """The header, and where the tensors begin."""
    try:
        with file.open("rb") as stream:
            prefix = stream.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            if not 2 <= length <= LARGEST_HEADER_BYTES:
                raise ValueError(f"a header of {length} bytes")
            text = stream.read(length)
        if len(text) < length:
            raise ValueError(f"{len(text)} of {length} bytes of the header")
        entries = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        entries.pop("__metadata__", None)
        header = {name: msgspec.json.decode(entry, type=_Tensor) for name, entry in entries.items()}
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"{file} is truncated or no safetensors file ({error}); download it again. What the config gives can still "
            "be computed: superinfer profile MODEL --static with the config.json itself"
        ) from None
    return header, 8 + length
