"""What Linux tells of a CPU while it runs: use, memory, clock, power, temperature, throttling, memory errors."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class CoreTimes:
    """Seconds that some cores have been busy, and have existed."""

    busy_s: float
    total_s: float


def core_times(cores: list[int]) -> CoreTimes:
    """Times of these cores, summed; a core that is offline counts nothing."""
    busy = total = 0.0
    by_core = psutil.cpu_times(percpu=True)
    for core in cores:
        if core < len(by_core):
            times = by_core[core]
            # guest time is part of user time already
            all_s = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
            busy += all_s - times.idle - getattr(times, "iowait", 0.0)
            total += all_s
    return CoreTimes(busy, total)


class CpuSensors:
    """Readings under /sys; None (or an empty answer) where this machine has no such sensor or hides it."""

    def __init__(self, sysfs: Path = Path("/sys")) -> None:
        self._sysfs = sysfs

    def clock_mhz(self, cores: list[int]) -> float | None:
        """Mean clock of the cores now; None where the system does not govern it (most virtual machines)."""
        readings = [self._number(f"devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq") for core in cores]
        known = [reading for reading in readings if reading is not None]
        return sum(known) / len(known) / 1e3 if known else None

    def energy_joules(self) -> float | None:
        """Energy of all packages so far (RAPL); None without it, or without the right to read it."""
        readings = [self._number(f"{folder}/energy_uj") for folder in self._packages()]
        known = [reading for reading in readings if reading is not None]
        return sum(known) / 1e6 if known else None

    def hides_energy(self) -> bool:
        """True where there is an energy counter that this process may not read."""
        return bool(self._packages()) and self.energy_joules() is None

    def temperature_celsius(self) -> float | None:
        """The hottest sensor of the CPU."""
        hottest: float | None = None
        for folder in (self._sysfs / "class/hwmon").glob("hwmon*"):
            if self._text(folder / "name") not in ("coretemp", "k10temp", "zenpower", "cpu_thermal"):
                continue
            for sensor in folder.glob("temp*_input"):
                with contextlib.suppress(ValueError):
                    celsius = int(self._text(sensor)) / 1e3
                    hottest = celsius if hottest is None else max(hottest, celsius)
        return hottest

    def throttle_count(self, cores: list[int]) -> int | None:
        """How often these cores were throttled for heat so far; None where that is not counted."""
        names = [f"devices/system/cpu/cpu{core}/thermal_throttle/core_throttle_count" for core in cores]
        known = [reading for name in names if (reading := self._number(name)) is not None]
        return int(sum(known)) if known else None

    def memory_errors(self) -> tuple[int, int] | None:
        """(corrected, uncorrected) memory errors so far; None without ECC memory or its driver."""
        controllers = list((self._sysfs / "devices/system/edac/mc").glob("mc[0-9]*"))
        if not controllers:
            return None

        def total(name: str) -> int:
            return int(sum(self._number(str(each / name)) or 0 for each in controllers))

        return total("ce_count"), total("ue_count")

    def offline(self, cores: list[int]) -> list[int]:
        """Those of the cores that the system has switched off."""
        return [core for core in cores if self._number(f"devices/system/cpu/cpu{core}/online") == 0]

    def _packages(self) -> list[Path]:
        return sorted((self._sysfs / "class/powercap").glob("intel-rapl:[0-9]"))

    def _number(self, path: str) -> float | None:
        try:
            return float(self._text(self._sysfs / path))
        except ValueError:
            return None

    @staticmethod
    def _text(path: Path) -> str:
        try:
            return path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return ""
