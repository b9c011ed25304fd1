"""Version numbers: one more whenever a contract's terms change, so that a number always means the same terms."""

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec

from superinfer.contracts.contract import SLOContract


class KnownVersion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last version of a service's contract, in force or retired, and the fingerprint of its terms."""

    version: Annotated[int, msgspec.Meta(ge=1)]
    fingerprint: str


def fingerprint(contract: SLOContract) -> str:
    """The same text for contracts that differ in their version at most."""
    subs = {name: msgspec.structs.replace(sub, version=1) for name, sub in contract.sub_slos.items()}
    unversioned = msgspec.structs.replace(contract, version=1, sub_slos=subs)
    return hashlib.sha256(msgspec.json.encode(unversioned, order="deterministic")).hexdigest()[:32]


def next_version(contract: SLOContract, known: KnownVersion | None) -> int:
    """The version of a contract with these terms after `known`."""
    if known is None:
        return 1
    return known.version + (fingerprint(contract) != known.fingerprint)
