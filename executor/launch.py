"""Starts the engine process and ends it: the launcher's side."""

from __future__ import annotations

import shutil
import time
from types import TracebackType

import msgspec
import zmq

from superinfer.contracts.errors import EngineError
from superinfer.executor.child_process import ChildProcess
from superinfer.executor.config import EngineConfig
from superinfer.executor.engine_main import engine_endpoint
from superinfer.executor.messages import EngineFailed, EngineMessage, EngineReady, Hello
from superinfer.executor.open_files import allow_open_files
from superinfer.executor.worker import DEFAULT_RUNNER
from superinfer.executor.worker_messages import rebuild_error
from superinfer.executor.worker_process import make_socket_directory


class EngineProcess:
    """An engine process and its workers. They end with `close`, and by themselves when this process ends.

    Use as a context manager: entering starts it, `wait_ready` waits until its workers have loaded the model.
    """

    def __init__(self, config: EngineConfig, *, runner: str = DEFAULT_RUNNER) -> None:
        self._config = config
        self._runner = runner
        self._child: ChildProcess | None = None
        self._directory = ""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)

    @property
    def _process(self) -> ChildProcess:
        if self._child is None:
            raise EngineError("the engine has not been started")
        return self._child

    @property
    def endpoint(self) -> str:
        """Where clients connect, `ipc://…`."""
        return engine_endpoint(self._directory)

    @property
    def pid(self) -> int:
        """The engine's process id."""
        return self._process.pid

    @property
    def sentinel(self) -> int:
        """A file descriptor that becomes readable when the engine process ends."""
        return self._process.sentinel

    def is_alive(self) -> bool:
        """True until the engine process has ended."""
        return self._child is not None and self._child.is_alive()

    def start(self) -> None:
        """Start the process; it starts its workers, which load the model in the background.

        ResourceError where the system does not let it open the files it needs.
        """
        allow_open_files(self._config.domains)
        self._directory = str(make_socket_directory())
        self._child = ChildProcess(
            "superinfer.executor.engine_main",
            ["--directory", self._directory, "--runner", self._runner],
            msgspec.msgpack.encode(self._config),
        )
        # Asking now makes the engine's answer wait here, even if it has failed and ended before `wait_ready`.
        self._socket.setsockopt(zmq.RECONNECT_IVL, 10)
        self._socket.connect(self.endpoint)
        self._socket.send(msgspec.msgpack.encode(Hello()))

    def wait_ready(self, timeout_s: float = 600.0) -> EngineReady:
        """Wait until all workers are ready; raises the ModelError, ResourceError or EngineError in the way."""
        deadline_s = time.monotonic() + timeout_s
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self.sentinel, zmq.POLLIN)
        while time.monotonic() < deadline_s:
            poller.poll(max(0.0, deadline_s - time.monotonic()) * 1000)
            alive = self._process.is_alive()  # before reading: what it said last has come by now
            if not self._socket.poll(0 if alive else 200):
                if not alive:
                    raise EngineError(f"the engine process {self._process.describe_end()} while it started")
                continue
            for frame in self._socket.recv_multipart():
                message = msgspec.msgpack.decode(frame, type=EngineMessage)
                if isinstance(message, EngineReady):
                    self._socket.close()  # what the engine tells its clients would wait here for ever
                    return message
                if isinstance(message, EngineFailed):
                    raise rebuild_error(message.kind, message.message)
        raise EngineError(f"the engine was not ready within {timeout_s:g} s")

    def close(self, timeout_s: float = 10.0) -> None:
        """End the engine and its workers and remove their socket; safe to call twice."""
        self._context.destroy(linger=0)
        if self._child is not None:
            self._child.close(timeout_s)
            self._child = None
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> EngineProcess:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
