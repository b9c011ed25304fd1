"""Steps that give way compute in the scheduling class SCHED_IDLE, see sched(7).

Whoever else wants their core has it at once, and the system takes it for an idle one when it looks for a place for
somebody, so that it breaks in on these steps rather than on those that they give way to. A thread may enter the class
unasked, but leaves it only with CAP_SYS_NICE or an RLIMIT_NICE of 20: where it could not, nothing changes.
"""

from __future__ import annotations

import os
import threading

from superinfer.executor.time_slices import LONG_S, ask_for_slices

PATIENCE = 3.0
"""A step that takes so many times as long as planned gets nothing of its core: it then takes its share again."""


class IdleClass:
    """Of the thread that uses it. `is_open` where it may enter it and leave it again."""

    def __init__(self) -> None:
        self.is_open = hasattr(os, "SCHED_IDLE") and _has_way_back()
        self._is_in = False

    def enter(self) -> None:
        """Compute only while nobody else wants the core."""
        if self.is_open and not self._is_in:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            self._is_in = True

    def leave(self) -> None:
        """Compute as everybody does; nothing changes outside the class."""
        if self._is_in:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
            ask_for_slices(LONG_S)  # entering has forgotten them
            self._is_in = False


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
