"""The CPU runtime: NUMA nodes as devices, cores as slices, Linux's own mechanisms.

No CPU sets GB/s aside by itself: a reservation is a line in the ledger, kept by what the step planner lets best-effort
work move beside it, and by resctrl where kernel and CPU have it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from superinfer.contracts.errors import UsageError
from superinfer.executor.idle_class import IdleClass
from superinfer.executor.runtime.base import Phase
from superinfer.executor.runtime.cpu_health import CpuHealth
from superinfer.executor.runtime.cpu_sample import Sample
from superinfer.executor.runtime.cpu_sensors import CpuSensors, core_times
from superinfer.executor.runtime.cpu_topology import SYSTEM, cpu_topology
from superinfer.executor.runtime.curve_file import load_curve
from superinfer.executor.runtime.description import (
    BandwidthPoint,
    Device,
    DeviceTopology,
    HealthEvent,
    Mechanism,
    mask_of,
    slices_of,
)
from superinfer.executor.runtime.memory_bandwidth import measure_curve
from superinfer.executor.runtime.metrics import DeviceMetrics
from superinfer.executor.runtime.resctrl import Resctrl
from superinfer.executor.runtime.reservations import LedgerReservations
from superinfer.executor.runtime.thread_affinity import pin_threads
from superinfer.scheduler.ledger import BandwidthLedger, DeviceBandwidth


class CpuRuntime(LedgerReservations):
    """Implements `DeviceRuntime`. Devices enter the ledger when their bandwidth is known: `bandwidth_curve`."""

    vendor = "cpu"

    def __init__(
        self,
        ledger: BandwidthLedger | None = None,
        *,
        system: Path = SYSTEM,
        sensors: CpuSensors | None = None,
        resctrl: Resctrl | None = None,
        curve: Callable[[list[int]], list[BandwidthPoint]] = measure_curve,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(ledger, clock=clock)
        self._topology = cpu_topology(system)
        self._sensors = sensors or CpuSensors()
        self._resctrl = resctrl or Resctrl()
        self._measure = curve
        self._curves: dict[str, list[BandwidthPoint]] = {}
        self._limited: set[int] = set()
        self._last: dict[str, Sample] = {}
        self._health = {
            device.device_id: CpuHealth(device.device_id, slices_of(device.mask), self._sensors)
            for device in self._topology.devices
        }

    def topology(self) -> DeviceTopology:
        """NUMA nodes with their sockets, caches and cores."""
        return self._topology

    def bandwidth_curve(self, device_id: str) -> list[BandwidthPoint]:
        """Read bandwidth by number of cores, over the cores of the node that this process may use."""
        device = self._device(device_id)
        if device_id not in self._curves:
            cores = slices_of(device.usable_mask)
            if not cores:
                raise UsageError(f"device {device_id!r}: this process may use none of its cores")
            self._curves[device_id] = self._measure(cores)
            best = max(point.gb_per_s for point in self._curves[device_id])
            if device_id not in self.ledger.device_ids:
                self.ledger.add_device(DeviceBandwidth(device_id, best))
        return self._curves[device_id]

    def set_compute_affinity(self, pid: int, mask: int, phase: Phase = "all") -> None:
        """Pin every computing thread of a process; a phase is a matter of when this is called, a core serves any."""
        known = mask_of(core for device in self._topology.devices for core in slices_of(device.mask))
        if mask & ~known or not mask:
            raise UsageError(f"compute affinity mask {mask:#x}: bits of {known:#x} are accepted, at least one")
        pin_threads(pid, slices_of(mask))

    def limit_bandwidth(self, pid: int, gb_per_s: float | None) -> None:
        """Let resctrl hold a process to a rate: its share of the first device's measured bandwidth."""
        if gb_per_s is None:
            self._resctrl.unlimit(pid)
            self._limited.discard(pid)
            return
        device = self._topology.devices[0]
        curve = self._curves.get(device.device_id) or load_curve(self.vendor, device)
        if not curve:
            raise UsageError("limit_bandwidth: measure bandwidth_curve first; the limit is a share of it")
        self._resctrl.limit(pid, 100.0 * gb_per_s / max(point.gb_per_s for point in curve))
        self._limited.add(pid)

    def health_events(self) -> list[HealthEvent]:
        """Memory errors, throttling for heat, cores switched off."""
        now = self._clock()
        return [event for health in self._health.values() for event in health.events(now)]

    def metrics(self, device_id: str) -> DeviceMetrics:
        """Rates are since the last call for this device; None in the first."""
        device = self._device(device_id)
        cores = slices_of(device.mask)
        now = self._sample(device, cores)
        before = self._last.get(device_id)
        self._last[device_id] = now
        errors = self._sensors.memory_errors()
        return DeviceMetrics(
            device_utilization_percent=None if before is None else now.busy_percent(before),
            memory_bandwidth_utilization_percent=None if before is None else self._moved_percent(device, before, now),
            memory_used_bytes=_memory_used_bytes(device, self._topology),
            sm_clock_mhz=self._sensors.clock_mhz(cores),
            power_watts=None if before is None else now.watts(before),
            temperature_celsius=self._sensors.temperature_celsius(),
            clock_throttle_reasons=None if before is None else now.throttle_reasons(before),
            recovery_state=None if errors is None else _recovery_state(errors[1]),
        )

    def _sample(self, device: Device, cores: list[int]) -> Sample:
        return Sample(
            time_s=self._clock(),
            times=core_times(cores),
            energy_joules=self._sensors.energy_joules(),
            throttles=self._sensors.throttle_count(cores),
            moved_bytes=self._resctrl.moved_bytes(self._topology.devices.index(device)),
        )

    def _moved_percent(self, device: Device, before: Sample, now: Sample) -> float | None:
        """What the cores moved since `before`, of the best measured rate; None until that is measured."""
        curve = self._curves.get(device.device_id)
        moved = now.moved_bytes_per_s(before)
        return None if moved is None or not curve else 100.0 * moved / (1e9 * max(p.gb_per_s for p in curve))

    def mechanisms(self) -> list[Mechanism]:
        """Affinity, the ledger with the step planner, resctrl, and the sensors that need a privilege."""
        usable = len(os.sched_getaffinity(0))
        total = sum(device.mask.bit_count() for device in self._topology.devices)
        found = [
            Mechanism(
                name="thread affinity",
                does="keeps each worker's threads on its own cores",
                state="available",
                detail=f"{usable} of {total} cores",
            ),
            Mechanism(
                name="ledger and step planner",
                does="holds best effort to what reservations leave of the measured bandwidth",
                state="available",
            ),
            _idle_class(),
            self._resctrl.mechanism(),
        ]
        if self._sensors.hides_energy():
            fix = "as root: chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj"
            detail = "read access to the energy counters"
            found.append(Mechanism(name="RAPL", does="measures power", state="no privilege", detail=detail, fix=fix))
        return found

    def close(self) -> None:
        """Lift what limits were set."""
        for pid in list(self._limited):
            self.limit_bandwidth(pid, None)

    def _device(self, device_id: str) -> Device:
        for device in self._topology.devices:
            if device.device_id == device_id:
                return device
        known = ", ".join(device.device_id for device in self._topology.devices)
        raise UsageError(f"device {device_id!r} is not on this machine; known: {known}")


def _idle_class() -> Mechanism:
    name, does = "idle class (SCHED_IDLE)", "lets others have the core of best effort beside a reservation"
    if IdleClass().is_open:
        return Mechanism(name=name, does=does, state="available")
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        return Mechanism(name=name, does=does, state="absent", detail="this process is in another class; see chrt(1)")
    fix = "docker run --cap-add SYS_NICE, or --ulimit nice=20; systemd: LimitNICE=20"
    detail = "CAP_SYS_NICE, or an RLIMIT_NICE of 20"
    return Mechanism(name=name, does=does, state="no privilege", detail=detail, fix=fix)


def _recovery_state(uncorrected: int) -> str:
    return f"{uncorrected} uncorrected memory errors" if uncorrected else "ok"


def _memory_used_bytes(device: Device, topology: DeviceTopology) -> int | None:
    """Memory in use on a device's own node; of the whole machine where it has but one."""
    if len(topology.devices) == 1:
        memory = psutil.virtual_memory()
        return int(memory.total - memory.available)
    path = SYSTEM / f"node/node{device.device_id.removeprefix('cpu-')}/meminfo"
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[-2]) * 1024 for line in lines if "MemUsed:" in line), None)
