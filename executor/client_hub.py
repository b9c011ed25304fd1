"""The engine's side of its clients: a ROUTER socket, who is connected, and who owns which request."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator

import msgspec
import zmq

from superinfer.executor.messages import ClientMessage, EngineMessage, Finished, Rejected, Tokens
from superinfer.scheduler.outputs import FinishOutput, Output, TokensOutput

_MAX_RECEIVED = 256
"""Sends taken in one wake at most, so that a flood of requests does not keep the workers waiting."""


class ClientHub:
    """Receives client messages and sends each client what concerns it, in one send for each wake."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # sending to a client that has gone is an error
        self.socket.setsockopt(zmq.SNDHWM, 0)  # a slow reader must not stop the engine
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.bind(endpoint)
        self._decoder: msgspec.msgpack.Decoder[ClientMessage] = msgspec.msgpack.Decoder(ClientMessage)
        self._encoder = msgspec.msgpack.Encoder()
        self._clients: set[bytes] = set()
        self._owners: dict[str, bytes] = {}
        self._gone: list[str] = []

    def receive(self) -> Iterator[tuple[bytes, ClientMessage]]:
        """(client, message) pairs that have come; a message that cannot be read is reported and skipped."""
        for _ in range(_MAX_RECEIVED):
            if not self.socket.poll(0):
                return
            client, *frames = self.socket.recv_multipart(zmq.NOBLOCK)
            self._clients.add(client)
            for frame in frames:
                try:
                    yield client, self._decoder.decode(frame)
                except msgspec.MsgspecError as error:
                    print(f"superinfer engine: a client's message is malformed: {error}", file=sys.stderr)

    def wait_for_client(self, timeout_s: float) -> None:
        """Wait until at least one client has said something, so that there is somebody to tell."""
        deadline_s = time.monotonic() + timeout_s
        while not self._clients and (left_s := deadline_s - time.monotonic()) > 0:
            if self.socket.poll(math.ceil(left_s * 1000)):
                list(self.receive())

    def owns(self, client: bytes, request_id: str) -> bool:
        """True where the request is alive and this client's."""
        return self._owners.get(request_id) == client

    def admit(self, client: bytes, request_id: str) -> None:
        """The request's tokens go to this client from now on."""
        self._owners[request_id] = client

    def send(self, client: bytes, messages: Iterable[EngineMessage]) -> None:
        """Send to one client; where it has gone, its requests are listed by `take_orphans`."""
        try:
            self.socket.send_multipart([client, *map(self._encoder.encode, messages)], zmq.NOBLOCK)
        except zmq.ZMQError:
            self._clients.discard(client)
            self._gone += [request_id for request_id, owner in self._owners.items() if owner == client]
            self._owners = {key: owner for key, owner in self._owners.items() if owner != client}

    def broadcast(self, message: EngineMessage) -> None:
        """Send to every client."""
        for client in list(self._clients):
            self.send(client, [message])

    def take_orphans(self) -> list[str]:
        """Requests whose client has gone, each once."""
        gone, self._gone = self._gone, []
        return gone

    def deliver(self, outputs: list[Output], now: float) -> None:
        """Send committed tokens and endings to the clients that own the requests."""
        mail: dict[bytes, list[EngineMessage]] = {}
        for output in outputs:
            if isinstance(output, TokensOutput):
                for request_id, index, token_id in zip(
                    output.request_ids, output.output_indices, output.token_ids, strict=True
                ):
                    if (client := self._owners.get(request_id)) is not None:
                        mail.setdefault(client, []).append(Tokens(request_id, index, [token_id], now))
            elif (client := self._owners.pop(output.request_id, None)) is not None:
                mail.setdefault(client, []).append(_finished(output, now))
        for client, messages in mail.items():
            self.send(client, messages)

    def reject(self, client: bytes, rejected: Rejected) -> None:
        """Tell a client that its request was not admitted."""
        self.send(client, [rejected])


def _finished(output: FinishOutput, now: float) -> Finished:
    return Finished(
        request_id=output.request_id,
        reason=output.reason,
        time_s=now,
        stages=output.stages,
        output_tokens=output.output_tokens,
        domain_ids=output.domain_ids,
        error=output.error,
        cached_tokens=output.cached_tokens,
    )
