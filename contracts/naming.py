"""Service ids and who is whose parent: `hospital-core` is the parent of `hospital-core-emergency-triage`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable

ID_PATTERN = "^[a-z0-9-]+$"
ID_ACCEPTS = "lower-case letters, digits and '-' ([a-z0-9-]+)"
MAX_ID_LENGTH = 128

_ID = re.compile("[a-z0-9-]+")


def is_valid_id(text: str) -> bool:
    """True for what may name a service or a sub-task."""
    return len(text) <= MAX_ID_LENGTH and _ID.fullmatch(text) is not None


def parent_id(service_id: str, registered: Collection[str]) -> str | None:
    """The longest id in `registered` that is a prefix of `service_id` followed by '-', or None."""
    for end in range(len(service_id) - 1, 0, -1):
        if service_id[end] == "-" and service_id[:end] in registered:
            return service_id[:end]
    return None


def did_you_mean(text: str, accepted: Iterable[str]) -> str:
    """`; did you mean X?` for the accepted word nearest to `text`, or nothing where none is near."""
    nearest = difflib.get_close_matches(text, sorted(accepted), n=1, cutoff=0.55)
    return f"; did you mean {nearest[0]}?" if nearest else ""
