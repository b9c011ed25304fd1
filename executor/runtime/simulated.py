"""A runtime of devices that are not there: for tests, and for devices that a simulation describes.

It keeps the same ledger; what a real runtime would learn from the system is told to it: `emit`, `set_metrics`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

from superinfer.contracts.errors import UsageError
from superinfer.executor.runtime.base import Phase
from superinfer.executor.runtime.description import (
    BandwidthPoint,
    Device,
    DeviceTopology,
    HealthEvent,
    Link,
    Mechanism,
    Partition,
    mask_of,
)
from superinfer.executor.runtime.metrics import DeviceMetrics
from superinfer.executor.runtime.reservations import LedgerReservations
from superinfer.scheduler.ledger import BandwidthLedger, DeviceBandwidth
from superinfer.scheduler.topology import Topology

SLICES = 16
"""Compute slices of each device."""
CURVATURE = 4
"""A curve c / (c + CURVATURE) over the slices c: a quarter of 16 draws five eighths of what all do."""


class SimulatedRuntime(LedgerReservations):
    """The devices of a topology file behind the interface of real ones; implements `DeviceRuntime`."""

    vendor = "simulated"

    def __init__(
        self,
        topology: Topology,
        ledger: BandwidthLedger | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(ledger, clock=clock)
        self._rates = {device_id: device.bandwidth_gb_per_s for device_id, device in topology.devices.items()}
        self._topology = _described(topology)
        self._events: list[HealthEvent] = []
        self._metrics: dict[str, DeviceMetrics] = {}
        self.affinity: dict[tuple[int, Phase], int] = {}
        self.limits_gb_per_s: dict[int, float] = {}
        for device_id, rate in self._rates.items():
            if device_id not in self.ledger.device_ids:
                self.ledger.add_device(DeviceBandwidth(device_id, rate))

    def topology(self) -> DeviceTopology:
        """The file's devices and links, each device with quarters of its slices as partitions."""
        return self._topology

    def bandwidth_curve(self, device_id: str) -> list[BandwidthPoint]:
        """Saturating in the number of slices; all of them reach the file's rate."""
        self._check(device_id)
        most = self._rates[device_id] * (SLICES + CURVATURE) / SLICES
        return [
            BandwidthPoint(mask=mask_of(range(count)), gb_per_s=most * count / (count + CURVATURE))
            for count in (1, 2, 4, 8, 16)
        ]

    def set_compute_affinity(self, pid: int, mask: int, phase: Phase = "all") -> None:
        """Remember it in `affinity`."""
        known = mask_of(range(SLICES))
        if mask & ~known or not mask:
            raise UsageError(f"compute affinity mask {mask:#x}: bits of {known:#x} are accepted, at least one")
        self.affinity[pid, phase] = mask

    def limit_bandwidth(self, pid: int, gb_per_s: float | None) -> None:
        """Remember it in `limits_gb_per_s`."""
        if gb_per_s is None:
            self.limits_gb_per_s.pop(pid, None)
        else:
            self.limits_gb_per_s[pid] = gb_per_s

    def emit(self, event: HealthEvent) -> None:
        """Let this be what happens next."""
        self._check(event.device_id)
        self._events.append(event)

    def set_metrics(self, device_id: str, metrics: DeviceMetrics) -> None:
        """Let a device report these figures."""
        self._check(device_id)
        self._metrics[device_id] = metrics

    def health_events(self) -> list[HealthEvent]:
        """What was emitted since the last call."""
        events, self._events = self._events, []
        return events

    def metrics(self, device_id: str) -> DeviceMetrics:
        """What was set; without that a simulated device has no figure at all."""
        self._check(device_id)
        return self._metrics.get(device_id, DeviceMetrics())

    def mechanisms(self) -> list[Mechanism]:
        """All that the interface knows, kept in memory."""
        names = {
            "thread affinity": "is remembered",
            "ledger and step planner": "holds best effort to what reservations leave",
            "bandwidth limit": "is remembered",
        }
        return [Mechanism(name=name, does=does, state="available", detail="simulated") for name, does in names.items()]

    def close(self) -> None:
        """Forget limits."""
        self.limits_gb_per_s.clear()

    def _check(self, device_id: str) -> None:
        if device_id not in self._rates:
            raise UsageError(f"device {device_id!r} is not simulated; known: {', '.join(self._rates)}")


def _described(topology: Topology) -> DeviceTopology:
    quarter = SLICES // 4
    partitions = [
        Partition(name=f"quarter-{i}", mask=mask_of(range(i * quarter, (i + 1) * quarter)), shares="slices")
        for i in range(4)
    ]
    everything = mask_of(range(SLICES))
    devices, links = [], []
    for node in topology.nodes:
        ids = [f"{node.name}/{device.name}" for device in node.devices]
        for device_id, device in zip(ids, node.devices, strict=True):
            devices.append(
                Device(
                    device_id=device_id,
                    name=device.type or "simulated",
                    memory_bytes=int(device.memory_gb * 1e9),
                    mask=everything,
                    usable_mask=everything,
                    partitions=partitions,
                )
            )
            if node.host_link_gb_per_s is not None:
                links.append(Link(between=(device_id, "host"), kind="host", gb_per_s=node.host_link_gb_per_s))
        if node.device_link_gb_per_s is not None:
            for first, second in itertools.combinations(ids, 2):
                links.append(Link(between=(first, second), kind="device", gb_per_s=node.device_link_gb_per_s))
    for link in topology.links:
        links.append(Link(between=link.between, kind="network", gb_per_s=link.bandwidth_gb_per_s))
    return DeviceTopology(devices=devices, links=links)
