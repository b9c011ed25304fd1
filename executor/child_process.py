"""A Python module as a child process that cannot outlive its parent, with a sentinel to poll for its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Protocol

from superinfer.executor.lifeline import write_settings


class Child(Protocol):
    """A child process of this one, however it came to be."""

    pid: int
    """0 as long as it is not known."""

    @property
    def sentinel(self) -> int:
        """A file descriptor to poll: readable when `is_alive` has news. Another one may be the right one then."""
        ...

    def is_alive(self) -> bool:
        """True until the process has ended."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the process; True if it ended in time."""
        ...

    def describe_end(self) -> str:
        """How the process ended, for a person: "was killed by SIGKILL", "exited with code 1"."""
        ...

    @property
    def was_killed(self) -> bool:
        """Whether the process ended by SIGKILL: by somebody else's doing, as far as one can tell."""
        ...

    def kill(self) -> None:
        """SIGKILL; `close` has still to be called."""
        ...

    def close(self, timeout_s: float = 5.0) -> None:
        """End the process: by its lifeline, after `timeout_s` by SIGKILL; then release the sentinel."""
        ...


def describe_exit(code: int | None) -> str:
    """An exit code as `subprocess` gives it, negative for a signal, for a person; None is that of a running process."""
    if code is None:
        return "is running"
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


class ChildProcess:
    """`python -m module arguments…` with `settings` on its standard input, which stays open as its lifeline.

    The child has a process group of its own, so that Ctrl-C in a terminal reaches the parent alone, which then ends it
    in order; no session, since Linux shares cores out by sessions (autogroup) before it looks at classes. Its standard
    output goes to standard error: the parent's standard output is data. It inherits the file descriptors `files`, under
    the same numbers, and `environment` beside this process's own.
    """

    def __init__(
        self,
        module: str,
        arguments: list[str],
        settings: bytes,
        files: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=2,
            process_group=0,
            pass_fds=files,
            env=None if environment is None else {**os.environ, **environment},
        )
        self.pid: int = self._process.pid
        self.sentinel: int = os.pidfd_open(self.pid)
        assert self._process.stdin is not None
        self._lifeline = self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # it ended at once; the sentinel tells
            write_settings(self._lifeline, settings)

    def is_alive(self) -> bool:
        """True until the process has ended."""
        return self._process.poll() is None

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the process; True if it ended in time."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def describe_end(self) -> str:
        """How the process ended, for a person: "was killed by SIGKILL", "exited with code 1"."""
        return describe_exit(self._process.poll())

    @property
    def was_killed(self) -> bool:
        """Whether the process ended by SIGKILL: by somebody else's doing, as far as one can tell."""
        return self._process.poll() == -signal.SIGKILL

    def cut_lifeline(self) -> None:
        """Tell the child to end, as if this process had ended."""
        if not self._lifeline.closed:
            with contextlib.suppress(BrokenPipeError):
                self._lifeline.close()

    def close(self, timeout_s: float = 5.0) -> None:
        """End the process: by its lifeline, after `timeout_s` by SIGKILL; then release the sentinel."""
        self.cut_lifeline()
        if not self.wait(timeout_s):
            self._process.kill()
            self._process.wait()
        if self.sentinel >= 0:
            os.close(self.sentinel)
            self.sentinel = -1

    def kill(self) -> None:
        """SIGKILL; `close` has still to be called."""
        self._process.kill()

    def __enter__(self) -> ChildProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
