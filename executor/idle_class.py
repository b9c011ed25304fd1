"""Steps that leave their core to others compute in the scheduling class SCHED_IDLE, see sched(7).

The system takes a core where nobody else computes for an idle one when it looks for a place for somebody, so that it
breaks in on these steps rather than on those of a holder of bandwidth. Others of the same group (a cgroup, or with
autogroup a session) that want the core have nearly all of it. A thread may enter the class without a privilege, but
leaves it only with CAP_SYS_NICE or an RLIMIT_NICE of 20: where it could not, nothing changes, and neither does it where
somebody has put the process into another class than the usual one.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading

from superinfer.executor.time_slices import LONG_S, ask_for_slices

PATIENCE = 3.0
"""A step that takes so many times as long as planned gets too little of its core, and is recalled from the class."""


class IdleClass:
    """Of the thread that uses it. `is_open` where it may enter it and leave it again."""

    def __init__(self) -> None:
        self.is_open = sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_OTHER and _has_way_back()
        self._is_in = False

    def enter(self) -> None:
        """Leave the core to others."""
        if self.is_open and not self._is_in:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            self._is_in = True

    def leave(self) -> None:
        """Compute as everybody does; nothing changes outside the class."""
        if self._is_in:
            self._is_in = False
            try:
                os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
            except OSError:  # privileges have been taken away; once is enough
                self.is_open = False
                return
            ask_for_slices(LONG_S)  # entering has forgotten them


def recall(thread_id: int) -> bool:
    """Have a thread of any process leave the class; False where it is not in it, or cannot be told."""
    with contextlib.suppress(OSError):
        if os.sched_getscheduler(thread_id) == os.SCHED_IDLE:
            os.sched_setscheduler(thread_id, os.SCHED_OTHER, os.sched_param(0))
            return True
    return False


def _has_way_back() -> bool:
    """Tried by a thread that ends with it: capabilities of a user namespace are not what the kernel asks for."""
    back: list[bool] = []

    def try_it() -> None:
        try:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
            back.append(True)
        except OSError:
            pass

    thread = threading.Thread(target=try_it)
    thread.start()
    thread.join()
    return bool(back)
