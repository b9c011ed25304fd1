"""The parent's side of a worker: starts its process, sends plans, receives results, notices its death."""

from __future__ import annotations

import select
import shutil
import socket
import tempfile
import time
from pathlib import Path
from types import TracebackType

import msgspec

from superinfer.contracts.errors import EngineError
from superinfer.executor.child_process import Child, ChildProcess
from superinfer.executor.config import WorkerConfig
from superinfer.executor.frames import FrameSocket
from superinfer.executor.worker import DEFAULT_RUNNER, STOP
from superinfer.executor.worker_forks import ForkServer
from superinfer.executor.worker_messages import WorkerFailed, WorkerGreeting, WorkerReady, rebuild_error
from superinfer.scheduler.steps import StepPlan, StepResult

_MAX_SOCKET_PATH = 100


def make_socket_directory() -> Path:
    """A new directory for IPC sockets, mode 0700; under /tmp where $TMPDIR's path is too long."""
    directory = Path(tempfile.mkdtemp(prefix="superinfer-"))
    if len(str(directory)) + len("/engine.sock") <= _MAX_SOCKET_PATH:
        return directory
    directory.rmdir()
    return Path(tempfile.mkdtemp(prefix="superinfer-", dir="/tmp"))


class WorkerProcess:
    """One worker process. Not thread-safe; at most one thread may use it at a time.

    `runner` names the class that runs the steps, "module:Class", made from the WorkerConfig inside the
    process. With `forks`, whose runner is the same, the process is forked; without, it is made from scratch.
    """

    def __init__(self, config: WorkerConfig, *, runner: str = DEFAULT_RUNNER, forks: ForkServer | None = None) -> None:
        self.config = config
        self.ready: WorkerReady | None = None
        self._runner = runner
        self._forks = forks
        self._child: Child | None = None
        self._directory: Path | None = None
        self._listener: socket.socket | None = None
        self._frames: FrameSocket | None = None
        self._encoder = msgspec.msgpack.Encoder()
        self._greetings = msgspec.msgpack.Decoder(WorkerGreeting)
        self._results = msgspec.msgpack.Decoder(StepResult)

    @property
    def _process(self) -> Child:
        if self._child is None:
            raise EngineError(f"the worker of domain {self.config.domain_id} has not been started")
        return self._child

    @property
    def pid(self) -> int:
        """The worker's process id; 0 while it is not known, which it is when the worker is ready."""
        return self._process.pid if self.ready is None else self.ready.pid

    @property
    def sentinel(self) -> int:
        """A file descriptor that becomes readable when the process ends; to be asked for before each poll."""
        return self._process.sentinel

    def waits_for(self) -> tuple[int, bool] | None:
        """The file descriptor that becomes readable when `try_receive` is due, and whether it is as well when that can
        be written to; to be asked for before each poll. None once the worker has closed its side.
        """
        if self._frames is None:
            return None if self._listener is None else (self._listener.fileno(), False)
        return None if self._frames.has_ended else (self._frames.fileno(), self._frames.has_unsent)

    def start(self) -> None:
        """Start the process; it loads the model in the background."""
        self._directory = make_socket_directory()
        endpoint = f"{self._directory}/worker.sock"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(endpoint)
        self._listener.listen(1)
        self._listener.setblocking(False)
        settings = msgspec.msgpack.encode(self.config)
        if self._forks is not None:
            self._child = self._forks.fork(endpoint, settings)
            return
        self._child = ChildProcess(
            "superinfer.executor.worker",
            ["--endpoint", endpoint, "--runner", self._runner],
            settings,
            self.config.kv_pools,
        )

    def is_alive(self) -> bool:
        """True until the process has ended."""
        return self._process.is_alive()

    def describe_end(self) -> str:
        """How the process ended: "the worker of domain 0 was killed by SIGKILL"."""
        return f"the worker of domain {self.config.domain_id} {self._process.describe_end()}"

    @property
    def was_killed(self) -> bool:
        """Whether the process ended by SIGKILL: by somebody else's doing, as far as one can tell."""
        return self._process.was_killed

    def try_ready(self) -> WorkerReady | None:
        """The worker's greeting if it has come, else None; raises the worker's error where it cannot start."""
        if self.ready is not None:
            return self.ready
        alive = self.is_alive()  # before reading: whatever a dead process sent can be read by now
        frame = self._receive()
        if frame is None:
            if not alive:
                raise EngineError(f"{self.describe_end()} while it started")
            return None
        greeting = self._greetings.decode(frame)
        if isinstance(greeting, WorkerFailed):
            raise rebuild_error(greeting.kind, greeting.message)
        self.ready = greeting
        self._remove_directory()  # the connection stays; nothing is left on disk even after SIGKILL
        return greeting

    def wait_ready(self, timeout_s: float = 300.0) -> WorkerReady:
        """Wait until the model is loaded; raises the worker's ModelError or ResourceError, or EngineError."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            self._wait(deadline_s)
            if (ready := self.try_ready()) is not None:
                return ready
            if time.monotonic() >= deadline_s:
                raise EngineError(f"the worker of domain {self.config.domain_id} was not ready within {timeout_s:g} s")

    def send(self, plan: StepPlan) -> None:
        """Queue a plan; a second one may be sent while the first runs. What a dead worker is sent is lost."""
        if self.ready is None:
            raise EngineError(f"the worker of domain {self.config.domain_id} is not ready for a step")
        assert self._frames is not None
        self._frames.send(self._encoder.encode(plan))

    def try_receive(self) -> StepResult | None:
        """The next step's result if it has come."""
        frame = self._receive()
        return None if frame is None else self._results.decode(frame)

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one plan and wait for its result; EngineError where the step fails or the worker dies."""
        self.send(plan)
        while True:
            alive = self.is_alive()
            if (result := self.try_receive()) is not None:
                if result.error is not None:
                    raise EngineError(f"step {plan.step_id} of domain {plan.domain_id}: {result.error}")
                return result
            if not alive:
                raise EngineError(f"{self.describe_end()} in step {plan.step_id}")
            self._wait(None)

    def kill(self) -> None:
        """SIGKILL the process; `close` has still to be called."""
        self._process.kill()

    def close(self, timeout_s: float = 2.0) -> None:
        """End the process and remove what it used; safe to call twice."""
        if self._child is not None:
            if self._child.is_alive() and self.ready is not None and self._frames is not None:
                self._frames.send(STOP)
                self._child.wait(timeout_s)
            self._child.close(timeout_s)
            self._child = None
        for end in (self._listener, self._frames):
            if end is not None:
                end.close()
        self._listener = None
        self._remove_directory()

    def _receive(self) -> bytes | None:
        """The next frame, if it is here; what waits to be sent goes on its way as well."""
        if self._frames is None:
            if self._listener is None:
                return None
            try:
                self._frames = FrameSocket(self._listener.accept()[0], waits=False)
            except BlockingIOError:
                return None
            except OSError as error:  # no descriptor left
                raise EngineError(f"the worker of domain {self.config.domain_id}: {error.strerror}") from error
            self._listener.close()
            self._listener = None
        self._frames.flush()
        return self._frames.receive()

    def _wait(self, deadline_s: float | None) -> None:
        """Wait for a message or for the end of the process, until `deadline_s`."""
        poller = select.poll()
        poller.register(self.sentinel, select.POLLIN)
        if (waits_for := self.waits_for()) is not None:
            descriptor, writes = waits_for
            poller.register(descriptor, select.POLLIN | (select.POLLOUT if writes else 0))
        poller.poll(None if deadline_s is None else max(0.0, deadline_s - time.monotonic()) * 1000)

    def _remove_directory(self) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def __enter__(self) -> WorkerProcess:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
