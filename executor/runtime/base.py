"""The interface to a vendor's devices. Another vendor is one more module that implements `DeviceRuntime`.

What each method stands for on other devices: the partitions of `topology` are SM partitions (green contexts) or MIG
instances, `bandwidth_curve` is bandwidth by number of SMs, `set_compute_affinity` chooses the partition a process's
next kernels run on, `limit_bandwidth` is whatever the device can do against a hog besides the step planner, and
`health_events` come from the driver (ECC, row remapping, recovery action).
"""

from __future__ import annotations

from typing import Literal, Protocol

from superinfer.executor.runtime.description import BandwidthPoint, DeviceTopology, HealthEvent, Mechanism
from superinfer.executor.runtime.metrics import DeviceMetrics
from superinfer.scheduler.ledger import BandwidthLedger, Priority, Reservation

Phase = Literal["all", "prefill", "decode"]


class DeviceRuntime(Protocol):
    """The devices of one vendor on this machine. Not thread-safe.

    `ledger` is the one book of reservations; a scheduler that reserves for its contracts writes into the same.
    """

    vendor: str
    ledger: BandwidthLedger

    def topology(self) -> DeviceTopology:
        """Devices, their partitions and caches, and the links between them."""
        ...

    def bandwidth_curve(self, device_id: str) -> list[BandwidthPoint]:
        """Measured memory bandwidth by number of slices, ascending; measured on the first call, which takes a while."""
        ...

    def reserve(
        self,
        device_id: str,
        bandwidth_gb_per_s: float,
        duration_ms: float,
        priority: Priority = Priority.NORMAL,
        *,
        owner: str = "",
    ) -> Reservation:
        """Hold a rate of a device's memory bandwidth from now on.

        Raises BandwidthRefusedError, which says which limit stands against it and who holds what, and UsageError.
        """
        ...

    def release(self, reservation: Reservation) -> bool:
        """End a reservation; False where it has ended already."""
        ...

    def set_compute_affinity(self, pid: int, mask: int, phase: Phase = "all") -> None:
        """Let a process compute on the slices of `mask` only, all of its threads, in one phase or in all.

        Raises UsageError for slices there are not, PrivilegeError where the system does not let this process do it.
        """
        ...

    def limit_bandwidth(self, pid: int, gb_per_s: float | None) -> None:
        """Let the device itself hold a process to a rate, None for no limit.

        Raises UnsupportedError where it has no such mechanism, PrivilegeError where this process may not use it.
        """
        ...

    def health_events(self) -> list[HealthEvent]:
        """What has happened since the last call."""
        ...

    def metrics(self, device_id: str) -> DeviceMetrics:
        """The figures of one device now; UsageError for an unknown one."""
        ...

    def mechanisms(self) -> list[Mechanism]:
        """What this runtime could use, and what it can use here."""
        ...

    def close(self) -> None:
        """Undo what was set on the system: limits, groups."""
        ...
