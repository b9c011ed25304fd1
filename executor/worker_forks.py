"""The engine's side of the fork server: starts it, orders workers from it, and has them as children of its own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import time
from typing import IO

import msgspec

from superinfer.executor.child_process import ChildProcess, describe_exit
from superinfer.executor.config import WorkerConfig
from superinfer.executor.lifeline import write_settings
from superinfer.executor.worker_messages import ForkOrder, WorkerBorn

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Libraries would start their threads on import, and who has threads cannot be forked."""

BIRTH_S = 10.0
"""Within which a server that has forked before forks again; one that does not is stopped or hangs, and is ended.

Until the first birth it imports, and may compile, for as long as that takes; orders given meanwhile wait in a queue.
"""

RESTART_S = 5.0
"""A server that ends sooner after its start is not started again until a worker is wanted."""

_MAX_BIRTH_BYTES = 4096
_PR_SET_CHILD_SUBREAPER = 36


class ForkServer:
    """Starts `superinfer.executor.fork_server`, and again when it has ended. Workers live on when it ends.

    `like` are configs that tell what workers there will be, one of each kind: their kernels are loaded before the fork,
    and they inherit the file descriptors of the KV pools, which all have, under the same numbers. From the first start
    on this process takes what its descendants orphan: the workers, whose ends it learns as those of its own children.
    `last_birth_s` is when a worker of the server that runs was last seen born (monotonic); None before the first: from
    then on they come at once.
    """

    def __init__(self, runner: str, like: list[WorkerConfig]) -> None:
        self._runner = runner
        self._like = like
        self._child: ChildProcess | None = None
        self._orders: socket.socket | None = None
        self._started_s = 0.0
        self.last_birth_s: float | None = None

    @property
    def pid(self) -> int:
        """The server's process id; 0 while there is none."""
        return 0 if self._child is None else self._child.pid

    @property
    def sentinel(self) -> int | None:
        """Readable when the server has ended; None while there is none."""
        return None if self._child is None else self._child.sentinel

    def start(self) -> None:
        """Start the server, unless it runs; it imports in the background. OSError where no process can be made."""
        if self._child is not None and self._child.is_alive():
            return
        self.close()
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._child = ChildProcess(
                "superinfer.executor.fork_server",
                ["--socket", str(theirs.fileno()), "--runner", self._runner],
                msgspec.msgpack.encode(self._like),
                [theirs.fileno(), *self._like[0].kv_pools],
                ONE_THREAD,
            )
        self._started_s = time.monotonic()
        self.last_birth_s = None

    def tend(self) -> None:
        """Start the server again where it has ended, so that the next worker need not wait for imports."""
        if self._child is None or self._child.is_alive():
            return
        ended_s = time.monotonic()
        self.close()
        if ended_s - self._started_s >= RESTART_S:
            with contextlib.suppress(OSError):
                self.start()

    def fork(self, endpoint: str, settings: bytes) -> ForkedChild:
        """A worker that connects to `endpoint`; the server may not have begun when this returns. OSError as `start`."""
        self.start()
        assert self._orders is not None
        birth, report = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with report:
            try:
                theirs, lifeline = os.pipe2(os.O_CLOEXEC)
            except OSError:
                birth.close()
                raise
            try:
                order = msgspec.msgpack.encode(ForkOrder(endpoint))
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has ended: nobody reports a birth
                    socket.send_fds(self._orders, [order], [theirs, report.fileno()])
            finally:
                os.close(theirs)
        return ForkedChild(self, birth, os.fdopen(lifeline, "wb", buffering=0), settings)

    def owes_a_birth(self, ordered_s: float) -> bool:
        """Whether a worker ordered at `ordered_s` (monotonic) should be there by now, with all ordered before it."""
        if self.last_birth_s is None:
            return False
        return time.monotonic() - max(ordered_s, self.last_birth_s) > BIRTH_S

    def kill(self) -> None:
        """SIGKILL the server: what it has not forked yet will not be."""
        if self._child is not None:
            self._child.kill()

    def close(self) -> None:
        """End the server; workers live on."""
        if self._orders is not None:
            self._orders.close()
            self._orders = None
        if self._child is not None:
            self._child.kill()
            self._child.close()
            self._child = None


class ForkedChild:
    """A process that the fork server makes; implements `Child`. `settings` go to its standard input, its lifeline."""

    def __init__(self, server: ForkServer, birth: socket.socket, lifeline: IO[bytes], settings: bytes) -> None:
        self.pid = 0
        self._server = server
        self._birth = birth
        self._birth.setblocking(False)
        self._lifeline = lifeline
        self._handle = -1
        self._code: int | None = None
        self._never_born = ""
        self._ordered_s = time.monotonic()
        with contextlib.suppress(BrokenPipeError):
            write_settings(lifeline, settings)

    @property
    def sentinel(self) -> int:
        """Until the process is there, readable when it is or will not be; then when it has ended."""
        return self._handle if self._handle >= 0 else self._birth.fileno()

    def is_alive(self) -> bool:
        """True until the process has ended, and from the order on."""
        if self._handle < 0 and not self._never_born:
            self._look_for_birth()
        if self._never_born or self._code is not None:
            return False
        if self._handle < 0:
            return True
        ended = os.waitid(os.P_PIDFD, self._handle, os.WEXITED | os.WNOHANG)
        if ended is None:
            return True
        self._code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        return False

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the process; True if it ended in time."""
        deadline_s = time.monotonic() + timeout_s
        while self.is_alive():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0.0:
                return False
            poll = select.poll()
            poll.register(self.sentinel, select.POLLIN)
            poll.poll(left_s * 1000.0)
        return True

    def describe_end(self) -> str:
        """How the process ended, for a person: "was killed by SIGKILL", "exited with code 1"."""
        return self._never_born or describe_exit(None if self.is_alive() else self._code)

    @property
    def was_killed(self) -> bool:
        """Whether the process ended by SIGKILL: by somebody else's doing, as far as one can tell."""
        return not self.is_alive() and self._code == -signal.SIGKILL

    def kill(self) -> None:
        """SIGKILL; where there is no process yet, to the server that would make it. `close` has still to be called."""
        if not self.is_alive():
            return
        if self._handle >= 0:
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        else:
            self._server.kill()

    def close(self, timeout_s: float = 5.0) -> None:
        """End the process: by its lifeline, after `timeout_s` by SIGKILL; then release the sentinel."""
        self._lifeline.close()
        while not self.wait(timeout_s):
            self.kill()
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
        self._birth.close()

    def _look_for_birth(self) -> None:
        try:
            frame = self._birth.recv(_MAX_BIRTH_BYTES)
        except BlockingIOError:
            if self._server.owes_a_birth(self._ordered_s):
                self._server.kill()
            return
        except ConnectionResetError:
            frame = b""
        born = msgspec.msgpack.decode(frame, type=WorkerBorn) if frame else WorkerBorn(0, _NEVER_FORKED)
        if born.pid:
            self.pid = born.pid
            self._server.last_birth_s = time.monotonic()
            self._handle = os.pidfd_open(born.pid)
        else:
            self._never_born = born.error


_NEVER_FORKED = "was not started: the process that forks workers ended, or it ended at once itself"
