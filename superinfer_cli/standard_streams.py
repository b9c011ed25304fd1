"""Standard streams for a process that was started without them (`>&-`): nothing else may get their numbers."""

from __future__ import annotations

import os
import sys


def open_closed_streams() -> None:
    """Put /dev/null where standard input, output or error is closed.

    Otherwise the next file or socket that is opened has that number, and what a child process writes to its standard
    error goes there.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number, which is this one: those below are open by now.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115
