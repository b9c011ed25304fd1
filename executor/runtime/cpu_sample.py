"""One reading of a CPU's counters, and what two of them say of the time between."""

from __future__ import annotations

from dataclasses import dataclass

from superinfer.executor.runtime.cpu_sensors import CoreTimes


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters at one time; None where the machine does not count."""

    time_s: float
    times: CoreTimes
    energy_joules: float | None
    throttles: int | None
    moved_bytes: int | None

    def busy_percent(self, before: Sample) -> float | None:
        """Share of the cores' time that was busy since `before`, 0 to 100."""
        total_s = self.times.total_s - before.times.total_s
        if total_s <= 0.0:
            return None
        # Sums of many counters are rounded, and idle time is now and then corrected downwards.
        return min(max(100.0 * (self.times.busy_s - before.times.busy_s) / total_s, 0.0), 100.0)

    def watts(self, before: Sample) -> float | None:
        """Mean power since `before`; None where the energy counter began anew."""
        if self.energy_joules is None or before.energy_joules is None or self.energy_joules < before.energy_joules:
            return None
        elapsed_s = self.time_s - before.time_s
        return (self.energy_joules - before.energy_joules) / elapsed_s if elapsed_s > 0.0 else None

    def throttle_reasons(self, before: Sample) -> list[str] | None:
        """Why clocks were lowered since `before`, as far as Linux counts it."""
        if self.throttles is None or before.throttles is None:
            return None
        return ["thermal"] if self.throttles > before.throttles else []

    def moved_bytes_per_s(self, before: Sample) -> float | None:
        """Memory traffic since `before`."""
        elapsed_s = self.time_s - before.time_s
        if self.moved_bytes is None or before.moved_bytes is None or elapsed_s <= 0.0:
            return None
        return (self.moved_bytes - before.moved_bytes) / elapsed_s
