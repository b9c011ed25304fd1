"""What a device runtime may refuse, and why."""

from __future__ import annotations

from superinfer.contracts.errors import ResourceError
from superinfer.scheduler.ledger import BandwidthRefusal


class PrivilegeError(ResourceError):
    """The device could do it, but this process may not: the message names the privilege and how to get it."""

    def __init__(self, what: str, privilege: str, fix: str) -> None:
        super().__init__(f"{what}: {privilege} is missing; {fix}")
        self.privilege = privilege
        self.fix = fix


class UnsupportedError(ResourceError):
    """Neither this device nor this system has such a mechanism."""


class BandwidthRefusedError(ResourceError):
    """A reservation does not fit: the message says which limit, and what is reserved by whom."""

    def __init__(self, refusal: BandwidthRefusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
