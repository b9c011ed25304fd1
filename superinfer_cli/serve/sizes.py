"""Amounts of memory as people write them."""

from __future__ import annotations

import re

from superinfer.contracts.errors import UsageError

UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def parse_bytes(text: str, flag: str) -> int:
    """Bytes in "2GiB", "512 MiB", "1.5GB" or "1073741824". Raises UsageError naming `flag`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    factor = UNITS.get(match[2].lower()) if match else None
    size = int(float(match[1]) * factor) if match and factor else 0
    if size <= 0:
        raise UsageError(f"{flag} {text!r} is not an amount of memory; write it like 2GiB, 512MiB or 1500MB")
    return size
