"""What a runtime says of its devices: topology, measured bandwidth, mechanisms, health.

A compute slice is what an affinity mask counts: a core of a CPU, a group of streaming multiprocessors of a GPU. Bit i
of a mask is slice i; masks are Python integers, of any width.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec


def mask_of(slices: Iterable[int]) -> int:
    """The mask with these slices' bits set."""
    mask = 0
    for each in slices:
        mask |= 1 << each
    return mask


def slices_of(mask: int) -> list[int]:
    """The slices whose bits are set, ascending."""
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """Compute slices that may be given away together: cores that share a cache, an SM partition, a MIG instance.

    `name` is unique within its device; `shares` says what they have in common.
    """

    name: str
    mask: int
    shares: str


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    """One cache and the slices that it serves. `kind` is as the system calls it: data, instruction, unified."""

    level: int
    kind: str
    size_bytes: int
    mask: int


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One memory with the compute slices around it: a NUMA node, a GPU. Its slices share its memory bandwidth.

    `usable_mask` are the slices this process may use.
    """

    device_id: str
    name: str
    memory_bytes: int
    mask: int
    usable_mask: int
    partitions: list[Partition] = []
    caches: list[Cache] = []


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A way between two devices, or a device and "host"; `gb_per_s` None where nobody has measured or stated it.

    `relative_distance` is the system's own figure where it has one (NUMA: 10 is local).
    """

    between: tuple[str, str]
    kind: str
    gb_per_s: float | None = None
    relative_distance: int | None = None


class DeviceTopology(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of one machine and how they are linked."""

    devices: list[Device]
    links: list[Link] = []


class BandwidthPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Memory bandwidth (10⁹ bytes/s, read) that the slices of `mask` reach together.

    `core_share` is the part of the time for which they were there for the measurement: with less than nearly 1 others
    took the rest, and the rate is too low.
    """

    mask: int
    gb_per_s: float
    core_share: float = 1.0

    @property
    def slices(self) -> int:
        """How many slices took part."""
        return self.mask.bit_count()


class Mechanism(msgspec.Struct, frozen=True, kw_only=True):
    """Something a runtime can use to keep its promises, and whether it can be used here.

    "no privilege": there, but not for this process; `fix` says what to do. "absent": not on this device or system.
    """

    name: str
    does: str
    state: Literal["available", "no privilege", "absent"]
    detail: str = ""
    fix: str = ""


class HealthEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a device. "fatal": what runs on `mask` (0: on all of it) cannot go on there."""

    device_id: str
    kind: str
    severity: Literal["warning", "fatal"]
    detail: str
    time_s: float
    mask: int = 0
