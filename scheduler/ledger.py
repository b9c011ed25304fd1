"""The bandwidth ledger: who holds how many GB/s of which device, until when, and what is left for the rest.

A reservation holds a rate over a half-open window [start, end). It is an accounting entry: no device sets GB/s
aside by itself, so the step planner keeps the promise by what it lets best-effort work move meanwhile
(`best_effort_gb`). Times are seconds of any one monotonic clock and passed in.

Preemption rule. Nothing is displaced unless the caller says `preempt=True`. Then reservations of strictly lower
priority may end at once, lowest priority first, within one priority the latest granted first, and only those
without which the request would not fit; if even all of them would not make room, none is touched. Equals never
displace each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Literal

from superinfer.contracts.errors import UsageError


class Priority(IntEnum):
    """Who may displace whom: a higher value may displace a lower one, where preemption is asked for."""

    LOW = 0
    NORMAL = 1
    HIGH = 2


@dataclass(frozen=True, slots=True)
class Reservation:
    """`bandwidth_gb_per_s` of a device for `owner` from `start_s` up to, not including, `end_s`.

    `displaced` are the reservations that were ended to make room for this one.
    """

    reservation_id: int
    device_id: str
    owner: str
    bandwidth_gb_per_s: float
    priority: Priority
    start_s: float
    end_s: float
    displaced: tuple[Reservation, ...] = ()


@dataclass(frozen=True, slots=True)
class BandwidthRefusal:
    """Why a reservation was not granted.

    `limit` is "device" where the request exceeds what the device may ever reserve, "reserved" where others hold
    too much of it now; `holders` are those others, largest first. `retry_after_s` is when the same request would
    fit if nothing else changes, None for never.
    """

    device_id: str
    requested_gb_per_s: float
    limit: Literal["device", "reserved"]
    reservable_gb_per_s: float
    available_gb_per_s: float
    holders: tuple[Reservation, ...]
    retry_after_s: float | None

    @property
    def message(self) -> str:
        """One line: what was asked, which limit stands against it, who holds what."""
        asked = f"{self.device_id}: {self.requested_gb_per_s:g} GB/s cannot be reserved"
        if self.limit == "device":
            return f"{asked}: at most {self.reservable_gb_per_s:g} GB/s of this device may be reserved at all"
        held = ", ".join(f"{each.owner} {each.bandwidth_gb_per_s:g}" for each in self.holders)
        return (
            f"{asked}: {self.available_gb_per_s:g} of {self.reservable_gb_per_s:g} GB/s are free in the window; "
            f"reserved: {held}"
        )


@dataclass(frozen=True, slots=True)
class DeviceBandwidth:
    """A device's memory bandwidth, best the measured one, and the share of it that may be reserved."""

    device_id: str
    bandwidth_gb_per_s: float
    reservable_share: float = 0.9

    @property
    def reservable_gb_per_s(self) -> float:
        """The most that reservations may add up to at any instant."""
        return self.bandwidth_gb_per_s * self.reservable_share


class BandwidthLedger:
    """All reservations of a set of devices. A `now` earlier than one already seen counts as that one."""

    def __init__(self, devices: Iterable[DeviceBandwidth]) -> None:
        self._devices: dict[str, DeviceBandwidth] = {}
        self._held: dict[str, dict[int, Reservation]] = {}
        self._now = -math.inf
        self._next_id = 0
        for device in devices:
            self.add_device(device)

    def add_device(self, device: DeviceBandwidth) -> None:
        """One more device, with nothing reserved. Raises UsageError."""
        if device.device_id in self._devices:
            raise UsageError(f"device {device.device_id!r} is given twice; each device once is accepted")
        _check_positive("bandwidth_gb_per_s", device.bandwidth_gb_per_s)
        if not 0.0 < device.reservable_share <= 1.0:
            raise UsageError(f"reservable_share {device.reservable_share!r}: above 0, at most 1 is accepted")
        self._devices[device.device_id] = device
        self._held[device.device_id] = {}

    @property
    def device_ids(self) -> list[str]:
        """The devices that have an account here."""
        return list(self._devices)

    def reservable_gb_per_s(self, device_id: str) -> float:
        """The most that may be reserved of a device at once."""
        return self._device(device_id).reservable_gb_per_s

    def reserve(
        self,
        device_id: str,
        bandwidth_gb_per_s: float,
        duration_ms: float,
        priority: Priority,
        owner: str,
        now: float,
        *,
        preempt: bool = False,
    ) -> Reservation | BandwidthRefusal:
        """Reserve from `now` on, or say what stands against it; a refusal changes nothing. Raises UsageError."""
        device = self._device(device_id)
        _check_positive("bandwidth_gb_per_s", bandwidth_gb_per_s)
        _check_positive("duration_ms", duration_ms)
        self.expire(now)
        start_s, end_s = self._now, self._now + duration_ms / 1e3
        limit = device.reservable_gb_per_s
        others = list(self._held[device_id].values())
        victims: Sequence[Reservation] = ()
        if not _fits(others, bandwidth_gb_per_s, limit, start_s):
            found = _victims(others, bandwidth_gb_per_s, limit, priority, start_s) if preempt else None
            if found is None:
                return self._refusal(device, bandwidth_gb_per_s, others)
            victims = found
        for victim in victims:
            del self._held[device_id][victim.reservation_id]
        reservation = Reservation(
            self._next_id, device_id, owner, bandwidth_gb_per_s, priority, start_s, end_s, tuple(victims)
        )
        self._next_id += 1
        # What is kept holds no chain of everything it ever displaced.
        self._held[device_id][reservation.reservation_id] = _without_history(reservation)
        return reservation

    def fits(self, device_id: str, bandwidth_gb_per_s: float, now: float) -> bool:
        """Whether so much more could be reserved now, without reserving it."""
        device = self._device(device_id)
        self.expire(now)
        return _fits(self._held[device_id].values(), bandwidth_gb_per_s, device.reservable_gb_per_s, self._now)

    def is_held(self, reservation_id: int, now: float) -> bool:
        """Whether a reservation has not ended yet."""
        self.expire(now)
        return any(reservation_id in held for held in self._held.values())

    def extend(self, reservation_id: int, end_s: float, now: float) -> bool:
        """Let one that is held end later, never sooner; False where it has ended already.

        Room is no matter: what else is held was granted beside it.
        """
        self.expire(now)
        for held in self._held.values():
            if (reservation := held.get(reservation_id)) is not None:
                held[reservation_id] = replace(reservation, end_s=max(reservation.end_s, end_s))
                return True
        return False

    def release(self, reservation_id: int, now: float) -> bool:
        """End one reservation; False where it has ended already."""
        self.expire(now)
        return any(held.pop(reservation_id, None) is not None for held in self._held.values())

    def release_owner(self, owner: str, now: float) -> list[Reservation]:
        """End everything that `owner` holds on any device: it finished, was cancelled, or its domain failed."""
        self.expire(now)
        ended = [each for held in self._held.values() for each in held.values() if each.owner == owner]
        for each in ended:
            del self._held[each.device_id][each.reservation_id]
        return ended

    def expire(self, now: float) -> list[Reservation]:
        """Drop what has run out by `now`. Every other call that takes `now` does this first."""
        self._now = max(self._now, now)
        ended = [each for held in self._held.values() for each in held.values() if each.end_s <= self._now]
        for each in ended:
            del self._held[each.device_id][each.reservation_id]
        return ended

    def reservations(self, device_id: str, now: float) -> list[Reservation]:
        """What is held of a device, in the order it was granted."""
        self._device(device_id)
        self.expire(now)
        return list(self._held[device_id].values())

    def reserved_gb_per_s(self, device_id: str, now: float) -> dict[str, float]:
        """What each owner holds of a device, for metrics."""
        totals: dict[str, list[float]] = {}
        for each in self.reservations(device_id, now):
            totals.setdefault(each.owner, []).append(each.bandwidth_gb_per_s)
        return {owner: math.fsum(parts) for owner, parts in totals.items()}

    def best_effort_gb(self, device_id: str, start_s: float, end_s: float) -> float:
        """GB that work without a reservation may move in [start_s, end_s): bandwidth less what is reserved, by time.

        A pure query; the window may lie ahead. What ended before `now` of an earlier call is not known any more.
        """
        device = self._device(device_id)
        if end_s <= start_s:
            return 0.0
        reserved_gb = math.fsum(
            each.bandwidth_gb_per_s * max(min(each.end_s, end_s) - max(each.start_s, start_s), 0.0)
            for each in self._held[device_id].values()
        )
        return max(device.bandwidth_gb_per_s * (end_s - start_s) - reserved_gb, 0.0)

    def _device(self, device_id: str) -> DeviceBandwidth:
        if device_id not in self._devices:
            raise UsageError(f"device {device_id!r} is not in the ledger; known: {', '.join(self._devices) or 'none'}")
        return self._devices[device_id]

    def _refusal(self, device: DeviceBandwidth, bandwidth: float, others: list[Reservation]) -> BandwidthRefusal:
        limit = device.reservable_gb_per_s
        held = math.fsum(_rates_at(others, self._now))
        # The request fits for good from the end of some reservation on, if it fits an empty device at all.
        ends = sorted({each.end_s for each in others})
        fitting = (end for end in ends if _fits(others, bandwidth, limit, end))
        retry = next(fitting, None) if bandwidth <= limit else None
        return BandwidthRefusal(
            device_id=device.device_id,
            requested_gb_per_s=bandwidth,
            limit="device" if bandwidth > limit else "reserved",
            reservable_gb_per_s=limit,
            available_gb_per_s=max(limit - held, 0.0),
            holders=tuple(sorted(others, key=lambda each: (-each.bandwidth_gb_per_s, each.reservation_id))),
            retry_after_s=None if retry is None else retry - self._now,
        )


def _rates_at(held: Iterable[Reservation], instant: float) -> list[float]:
    return [each.bandwidth_gb_per_s for each in held if each.start_s <= instant < each.end_s]


def _fits(held: Iterable[Reservation], bandwidth: float, limit: float, start_s: float) -> bool:
    """Whether `bandwidth` more stays within `limit` from `start_s` on.

    Every reservation starts when it is granted, so from there on the sum only falls: its first instant decides.
    fsum is exact, so the order of grants cannot matter.
    """
    return math.fsum([*_rates_at(held, start_s), bandwidth]) <= limit


def _victims(
    others: list[Reservation], bandwidth: float, limit: float, priority: Priority, now: float
) -> list[Reservation] | None:
    """Whom the preemption rule ends for this request; None where it cannot make room."""
    lower = [each for each in others if each.priority < priority]
    lower.sort(key=lambda each: (each.priority, -each.reservation_id))
    kept = list(others)
    ended: list[Reservation] = []
    for each in lower:
        kept.remove(each)
        ended.append(each)
        if _fits(kept, bandwidth, limit, now):
            break
    else:
        return None
    for each in reversed(ended[:-1]):
        if _fits([*kept, each], bandwidth, limit, now):
            kept.append(each)
            ended.remove(each)
    return ended


def _without_history(reservation: Reservation) -> Reservation:
    return Reservation(
        reservation.reservation_id,
        reservation.device_id,
        reservation.owner,
        reservation.bandwidth_gb_per_s,
        reservation.priority,
        reservation.start_s,
        reservation.end_s,
    )


def _check_positive(name: str, value: float) -> None:
    if not (value > 0.0 and math.isfinite(value)):
        raise UsageError(f"{name} {value!r}: a finite number above 0 is accepted")
