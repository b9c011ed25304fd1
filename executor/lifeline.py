"""A child process's tie to its parent: its standard input, whose other end only the parent holds.

The parent writes the child's settings there, length first, and then nothing more. The kernel closes the
pipe when the parent ends in any way, SIGKILL included, so its end of file is the sign to end too.
(PR_SET_PDEATHSIG would be tied to the *thread* that started the child, which may end long before its
process.)
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
from typing import IO

_LENGTH = struct.Struct("<Q")


def write_settings(pipe: IO[bytes], settings: bytes) -> None:
    """Send `settings` to the child at the other end of `pipe`, which stays open."""
    pipe.write(_LENGTH.pack(len(settings)) + settings)
    pipe.flush()


def read_settings(fd: int = 0) -> bytes:
    """The settings that the parent sent; EOFError where it ended before they were complete."""
    (length,) = _LENGTH.unpack(_read_exactly(fd, _LENGTH.size))
    return _read_exactly(fd, length)


def die_with_parent(fd: int = 0) -> None:
    """Let the kernel end this process when the parent's end of `fd` closes, whatever it is doing then.

    The pipe signals its state through SIGIO, whose default action is to terminate.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(fd, 0)
    if poll.poll(0):
        raise SystemExit("the parent process ended while this one started")


def _read_exactly(fd: int, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = os.read(fd, count - len(data))
        if not part:
            raise EOFError("the parent process ended before it sent its settings")
        data += part
    return data
