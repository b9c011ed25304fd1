"""The asyncio side of the engine: submits requests and streams what comes back."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import msgspec
import zmq
import zmq.asyncio

from superinfer.contracts.contract import SLOContract
from superinfer.contracts.errors import EngineError, UsageError
from superinfer.executor.messages import (
    Abort,
    ClientMessage,
    CoresSpared,
    DomainEvent,
    EngineFailed,
    EngineMessage,
    EngineReady,
    FellBack,
    Finished,
    GetStats,
    Hello,
    Ping,
    Pong,
    RegisterContract,
    Rejected,
    Resumed,
    RetireContract,
    Stats,
    Submit,
    Tokens,
)
from superinfer.executor.silence import SILENCE_S
from superinfer.executor.spared_cores import OwnCores
from superinfer.executor.worker_messages import rebuild_error
from superinfer.scheduler.outputs import StageTimes
from superinfer.scheduler.request import Request
from superinfer.scheduler.steps import FinishReason

RequestEvent = FellBack | Tokens | Finished | Rejected
ENGINE_ENDED = "engine process ended unexpectedly"
_BEAT_S = 1.0
_ALIVE_CHECK_S = 0.2
_LINGER_MS = 200


@dataclass(slots=True)
class _Stream:
    events: asyncio.Queue[RequestEvent] = field(default_factory=asyncio.Queue)
    tokens: int = 0


class EngineClient:
    """One connection to an engine, for one event loop. Any number of requests may be open at once.

    The end of the engine process is noticed by its connection closing; `engine_alive` serves for the time
    before there is a connection. An engine that lives and says nothing for `silence_s`, although it is asked, fails
    what is open; from its next word on it is as before. `own_cores` of this process are kept off those that the engine
    spares, while there is a connection.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        engine_alive: Callable[[], bool] | None = None,
        silence_s: float = SILENCE_S,
        own_cores: OwnCores | None = None,
    ) -> None:
        self.domain_events: list[DomainEvent] = []
        self.resumptions: list[Resumed] = []
        self._endpoint = endpoint
        self._engine_alive = engine_alive
        self._own_cores = own_cores
        self._spared: list[int] = []
        # The context of the whole process: one of its own, collected as garbage in a cycle with its sockets, would wait
        # for them for ever.
        self._socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, _LINGER_MS)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 10)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[EngineMessage] = msgspec.msgpack.Decoder(EngineMessage)
        self._streams: dict[str, _Stream] = {}
        self._stats: deque[asyncio.Future[Stats]] = deque()
        self._ready: asyncio.Future[EngineReady] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: EngineError | None = None
        self._silence_s = silence_s
        self._silence: EngineError | None = None
        self._heard = self._asked = False

    async def connect(self, timeout_s: float = 600.0) -> EngineReady:
        """Connect and wait until the engine is ready; raises what stopped it, or EngineError in the end."""
        self._ready = asyncio.get_running_loop().create_future()
        monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.connect(self._endpoint)
        self._tasks = [
            asyncio.create_task(self._receive()),
            asyncio.create_task(self._watch(monitor)),
        ]
        self._send(Hello())
        deadline_s = time.monotonic() + timeout_s
        while not self._ready.done():
            await asyncio.wait([self._ready], timeout=_ALIVE_CHECK_S)
            if self._ready.done():
                break
            if self._engine_alive is not None and not self._engine_alive():
                # What it said last may be on its way.
                await asyncio.wait([self._ready], timeout=_ALIVE_CHECK_S)
                self._fail(EngineError(ENGINE_ENDED))
            elif time.monotonic() >= deadline_s:
                self._fail(EngineError(f"no engine answered at {self._endpoint} within {timeout_s:g} s"))
        ready = self._ready.result()
        self._tasks.append(asyncio.create_task(self._listen()))
        return ready

    @property
    def down(self) -> EngineError | None:
        """Why the engine serves nobody: it has ended, or has been silent for too long and may speak again."""
        return self._failure or self._silence

    async def submit(self, request: Request) -> AsyncIterator[RequestEvent]:
        """Send a request; the iterator gives its events and ends after Finished or Rejected.

        Leaving the iterator early (`aclose`, cancellation) aborts the request. UsageError where the id is
        in use.
        """
        if request.request_id in self._streams:
            raise UsageError(f"request id {request.request_id!r} is in use by an open request")
        stream = _Stream()
        if (down := self.down) is not None:
            stream.events.put_nowait(Rejected(request.request_id, "engine_down", str(down)))
        else:
            self._streams[request.request_id] = stream
            self._send(Submit(request))
        return self._events(request.request_id, stream)

    async def abort(self, request_id: str, reason: FinishReason = "abort") -> None:
        """Stop a request; its stream ends with Finished(reason). Unknown ids are ignored."""
        self._send(Abort(request_id, reason))

    async def register_contract(self, contract: SLOContract) -> None:
        """Requests submitted from now on may use the contract."""
        self._send(RegisterContract(contract))

    async def retire_contract(self, service_id: str) -> None:
        """Requests submitted from now on may not use the contract; those in flight go on with it."""
        self._send(RetireContract(service_id))

    async def stats(self) -> Stats:
        """A snapshot of the engine; EngineError where it has ended, or has been silent for too long."""
        if (down := self.down) is not None:
            raise down
        answer: asyncio.Future[Stats] = asyncio.get_running_loop().create_future()
        self._stats.append(answer)
        self._send(GetStats())
        return await answer

    async def close(self) -> None:
        """End the connection; open streams end with an error, the engine aborts their requests."""
        for request_id in list(self._streams):
            self._send(Abort(request_id))
        self._fail(EngineError("the connection to the engine was closed"))
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(zmq.ZMQError):
            self._socket.disable_monitor()
        self._socket.close()

    async def _events(self, request_id: str, stream: _Stream) -> AsyncIterator[RequestEvent]:
        try:
            while True:
                event = await stream.events.get()
                yield event
                if not isinstance(event, FellBack | Tokens):
                    return
        finally:
            if self._streams.get(request_id) is stream:
                self._send(Abort(request_id))

    def _send(self, message: ClientMessage) -> None:
        # With no limit on the queue a send never waits; its future is done when it returns.
        if self._failure is None:
            self._socket.send(self._encoder.encode(message), zmq.NOBLOCK)

    async def _receive(self) -> None:
        try:
            while True:
                for frame in await self._socket.recv_multipart():
                    self._heard, self._silence = True, None
                    self._dispatch(self._decoder.decode(frame))
        except msgspec.MsgspecError as error:
            self._fail(EngineError(f"the engine at {self._endpoint} speaks another protocol: {error}"))

    def _dispatch(self, message: EngineMessage) -> None:
        match message:
            case Tokens():
                if (stream := self._streams.get(message.request_id)) is not None:
                    stream.tokens += len(message.token_ids)
                    stream.events.put_nowait(message)
            case FellBack():
                if (stream := self._streams.get(message.request_id)) is not None:
                    stream.events.put_nowait(message)
            case Finished() | Rejected():
                if (stream := self._streams.pop(message.request_id, None)) is not None:
                    stream.events.put_nowait(message)
            case EngineReady():
                if self._ready is not None and not self._ready.done():
                    self._ready.set_result(message)
            case DomainEvent():
                self.domain_events.append(message)
            case CoresSpared():
                self._spared = message.cores
                self._keep_off_cores()
            case Resumed():
                self.resumptions.append(message)
            case Pong():
                self._asked = False
            case Stats():
                if self._stats:
                    answer = self._stats.popleft()
                    if not answer.done():
                        answer.set_result(message)
            case EngineFailed():
                self._fail(rebuild_error(message.kind, message.message))

    async def _watch(self, monitor: zmq.asyncio.Socket) -> None:
        """Wait for the connection to the engine to close, then end everything that waits for it."""
        await monitor.recv_multipart()
        await asyncio.sleep(0.05)  # let what the engine said last be read
        self._fail(EngineError(ENGINE_ENDED))

    async def _listen(self) -> None:
        """Ask an engine that says nothing whether it is there, and give up what is open where it stays silent.

        Beats are counted, not seconds: when this process itself was stopped, the engine's words have yet to be read.
        """
        beat_s, silent_beats = min(_BEAT_S, self._silence_s / 2), 0
        while True:
            await asyncio.sleep(beat_s)
            self._keep_off_cores()  # again, where it could not be done before
            silent_beats = 0 if self._heard else silent_beats + 1
            self._heard = False
            if silent_beats and not self._asked:
                self._asked = True
                self._send(Ping())
            if silent_beats * beat_s >= self._silence_s and self._silence is None and self._failure is None:
                for request_id in self._streams:
                    self._send(Abort(request_id))
                self._silence = EngineError(f"the engine has said nothing for {self._silence_s:g} s: stopped, or hung")
                self._end_all(self._silence)

    def _fail(self, error: Exception) -> None:
        """The engine is gone: end all streams and whoever waits for an answer."""
        if self._failure is not None:
            return
        self._failure = error if isinstance(error, EngineError) else EngineError(str(error))
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(error)
        self._end_all(self._failure)
        self._spared = []
        self._keep_off_cores()

    def _keep_off_cores(self) -> None:
        if self._own_cores is not None:
            self._own_cores.keep_off(self._spared)

    def _end_all(self, error: EngineError) -> None:
        """End whatever is open with this error."""
        for answer in self._stats:  # they stay in line: what is answered late is not the answer to a later question
            if not answer.done():
                answer.set_exception(error)
        streams, self._streams = self._streams, {}
        for request_id, stream in streams.items():
            stream.events.put_nowait(
                Finished(
                    request_id=request_id,
                    reason="error",
                    time_s=time.monotonic(),
                    stages=StageTimes(),
                    output_tokens=stream.tokens,
                    error=str(error),
                )
            )
