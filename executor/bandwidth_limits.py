"""Best effort beside reserved bandwidth, held to what the reservations leave by the device itself where it can.

The step planner spreads such steps over time; within a step a worker still reads as fast as it can. A device that can
hold a process to a rate evens that out.
"""

from __future__ import annotations

import sys

from superinfer.contracts.errors import SuperInferError
from superinfer.executor.runtime.base import DeviceRuntime

WORTH_A_CHANGE = 0.1
"""A rate that differs by less, as a share, is left as it is: devices have steps of about this."""


class BandwidthLimits:
    """The limits of workers by process id. Once the device has said that it cannot, it is not asked again."""

    def __init__(self, runtime: DeviceRuntime) -> None:
        self._runtime = runtime
        self._held: dict[int, float] = {}
        self._can = True

    def hold(self, pid: int, gb_per_s: float | None) -> None:
        """From now on this worker moves no more than `gb_per_s`; None for as much as it can."""
        held = self._held.get(pid)
        if gb_per_s is None:
            if held is not None:
                del self._held[pid]
                self._runtime.limit_bandwidth(pid, None)
            return
        if not self._can or (held is not None and abs(gb_per_s - held) < WORTH_A_CHANGE * held):
            return
        try:
            self._runtime.limit_bandwidth(pid, gb_per_s)
        except (SuperInferError, OSError) as error:  # such as a group too many for the hardware
            self._can = False
            print(f"superinfer engine: only the step planner keeps reserved bandwidth: {error}", file=sys.stderr)
        else:
            self._held[pid] = gb_per_s
