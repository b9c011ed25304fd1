"""Which cores the threads of a process run on, by Linux's sched_setaffinity, thread by thread."""

from __future__ import annotations

import os
from pathlib import Path

from superinfer.contracts.errors import UsageError
from superinfer.executor.runtime.errors import PrivilegeError


def thread_ids(pid: int, proc: Path = Path("/proc")) -> list[int]:
    """The threads of a process; empty where it has ended."""
    try:
        return sorted(map(int, os.listdir(proc / str(pid) / "task")))
    except (FileNotFoundError, ProcessLookupError):
        return []


def pin_threads(pid: int, cores: list[int]) -> None:
    """Let every thread of `pid` run on `cores` alone, and those that they start from now on.

    Raises UsageError for cores that there are not, PrivilegeError where the process is another user's.
    """
    if not cores:
        raise UsageError("compute affinity: an empty mask leaves nowhere to run; at least one bit is needed")
    for thread in thread_ids(pid):
        try:
            os.sched_setaffinity(thread, cores)
        except ProcessLookupError:
            continue  # the thread ended meanwhile
        except PermissionError as error:
            raise PrivilegeError(
                f"affinity of process {pid}", "CAP_SYS_NICE", "run as the user who owns the process, or grant it"
            ) from error
        except OSError as error:
            usable = sorted(os.sched_getaffinity(0))
            raise UsageError(f"cores {cores}: {error.strerror}; this process may use {usable}") from error
