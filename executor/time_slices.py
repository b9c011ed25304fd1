"""Time slices: threads that pass messages on ask for short ones, those that compute for long ones.

While every core computes, whoever gets a message has to take somebody's place. Linux (6.12 and later, EEVDF) lets a
thread that wakes up do so at once if its slice is over sooner; among equals it mostly waits for the next tick of the
clock, 4 ms, and a token with it. Shares of a core are the same whatever the slices. Elsewhere asking changes nothing.
See sched(7) and sched_setattr(2): `sched_runtime` of SCHED_OTHER.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys

SHORT_S = 0.0001
"""The shortest that the kernel grants."""
LONG_S = 0.004
"""Longer than anybody's usual slice, which is 1.4 ms on two cores and 2.8 on eight or more. Not much longer: with 20 ms
a worker was once in a while kept off a core that it shared with others for a second or two.
"""
_NUMBERS = {"x86_64": 314, "aarch64": 274}
"""Of the system call; the C library has no function for it."""


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime_ns", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    )


def ask_for_slices(slice_s: float) -> bool:
    """This thread, and those that it starts from now on, run for so long at a time; 0 for the usual. False where the
    system does not take it.
    """
    number = _NUMBERS.get(platform.machine())
    if sys.platform != "linux" or number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    attributes = _Attributes(
        size=ctypes.sizeof(_Attributes), nice=os.getpriority(os.PRIO_PROCESS, 0), runtime_ns=round(1e9 * slice_s)
    )
    return bool(ctypes.CDLL(None).syscall(number, 0, ctypes.byref(attributes), 0) == 0)
