"""Linux's resctrl: memory bandwidth allocation (MBA) and monitoring (MBM) where CPU and kernel have them.

A control group is a folder; writing a process into its `tasks` and a percentage into its `schemata` limits what that
process may move (docs.kernel.org, filesystems/resctrl). The percentage is of each memory's full rate, in steps of
the hardware.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from superinfer.executor.runtime.description import Mechanism
from superinfer.executor.runtime.errors import PrivilegeError, UnsupportedError
from superinfer.executor.runtime.thread_affinity import thread_ids

ROOT = Path("/sys/fs/resctrl")
GROUP_PREFIX = "superinfer-"
MOUNT_FIX = "as root: mount -t resctrl resctrl /sys/fs/resctrl"
WRITE_FIX = "run as root, or give this user write access to /sys/fs/resctrl"


class Resctrl:
    """Bandwidth limits of single processes. `cpuinfo` tells whether the CPU has the mechanism at all."""

    def __init__(self, root: Path = ROOT, cpuinfo: Path = Path("/proc/cpuinfo")) -> None:
        self._root = root
        self._cpuinfo = cpuinfo

    def limit(self, pid: int, percent: float) -> None:
        """Hold all threads of a process to a share of the memory bandwidth.

        Raises UnsupportedError and PrivilegeError.
        """
        group = self._root / f"{GROUP_PREFIX}{pid}"
        mechanism = self.mechanism()
        if mechanism.state == "absent":
            raise UnsupportedError(f"bandwidth limit of process {pid}: {mechanism.detail}")
        if mechanism.state == "no privilege":
            raise PrivilegeError(f"bandwidth limit of process {pid}", mechanism.detail, mechanism.fix)
        try:
            group.mkdir(exist_ok=True)
            lowest, step = self._hardware_steps()
            whole = min(max(round(percent / step) * step, lowest), 100)
            limits = ";".join(f"{memory}={whole}" for memory in self._memories())
            (group / "schemata").write_text(f"MB:{limits}\n", encoding="ascii")
            for thread in thread_ids(pid):  # one a write is what the kernel takes
                with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                    (group / "tasks").write_text(f"{thread}\n", encoding="ascii")
        except PermissionError as error:
            raise PrivilegeError(f"bandwidth limit of process {pid}", "write access to resctrl", WRITE_FIX) from error

    def unlimit(self, pid: int) -> None:
        """Give the process back to the default group; nothing happens where it has no limit."""
        with contextlib.suppress(OSError):
            (self._root / f"{GROUP_PREFIX}{pid}").rmdir()

    def moved_bytes(self, domain: int) -> int | None:
        """Bytes that all cores of cache domain `domain` have moved since it was mounted; None without MBM."""
        try:
            counter = self._root / f"mon_data/mon_L3_{domain:02d}/mbm_total_bytes"
            return int(counter.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None

    def mechanism(self) -> Mechanism:
        """Whether a limit can be set here, and what is in the way."""
        name, does = "resctrl MBA", "limits the memory bandwidth of a process"

        def answer(state: str, detail: str, fix: str = "") -> Mechanism:
            return Mechanism(name=name, does=does, state=state, detail=detail, fix=fix)  # type: ignore[arg-type]

        if not (self._root / "info/MB").is_dir():
            if not self._cpu_has_it():
                return answer("absent", "this CPU (or the hypervisor) has no memory bandwidth allocation")
            if not self._root.is_dir():
                return answer("absent", "this kernel was built without resctrl (CONFIG_X86_CPU_RESCTRL)")
            if (self._root / "info").is_dir():
                return answer("absent", "resctrl is mounted, but offers no memory bandwidth allocation")
            return answer("no privilege", "a mounted resctrl file system", MOUNT_FIX)
        try:
            (probe := self._root / f"{GROUP_PREFIX}probe").mkdir(exist_ok=True)
            probe.rmdir()
        except OSError:
            return answer("no privilege", "write access to resctrl", WRITE_FIX)
        return answer("available", f"in steps of {self._hardware_steps()[1]} %")

    def _cpu_has_it(self) -> bool:
        try:
            flags = self._cpuinfo.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        return any(line.startswith("flags") and " mba" in line for line in flags.splitlines())

    def _hardware_steps(self) -> tuple[int, int]:
        """(lowest percentage, step) that the hardware takes."""

        def number(name: str, default: int) -> int:
            try:
                return max(int((self._root / "info/MB" / name).read_text(encoding="ascii")), 1)
            except (OSError, ValueError):
                return default

        return number("min_bandwidth", 10), number("bandwidth_gran", 10)

    def _memories(self) -> list[str]:
        """The ids that a line of `schemata` names."""
        for line in (self._root / "schemata").read_text(encoding="ascii").splitlines():
            if line.strip().startswith("MB:"):
                return [part.partition("=")[0].strip() for part in line.strip()[3:].split(";")]
        return ["0"]
