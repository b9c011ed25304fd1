"""Frames over a local stream socket, between an engine and one of its workers: four bytes of length, then so many.

Whoever waits for a frame is woken by whoever sends it. A library that hands messages to threads of its own on the way
lets each of them wait for a time slice while every core computes, and a token with it.
"""

from __future__ import annotations

import socket
import struct

_LENGTH = struct.Struct("<I")
_READ_BYTES = 1 << 18


class FrameSocket:
    """One end of a connection. Where it does not wait, `send` keeps what the other side does not take yet, and
    `flush` sends on; `has_ended` says that nothing more will come.
    """

    def __init__(self, connection: socket.socket, *, waits: bool) -> None:
        connection.setblocking(waits)
        self._connection = connection
        self._received = bytearray()
        self._unsent = bytearray()
        self.has_ended = False

    def fileno(self) -> int:
        """The file descriptor, to be waited for."""
        return self._connection.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether `flush` is due when the socket can be written to."""
        return bool(self._unsent)

    def send(self, frame: bytes) -> None:
        """Send a frame, or begin to; what a connection that has ended is sent is lost."""
        self._unsent += _LENGTH.pack(len(frame))
        self._unsent += frame
        self.flush()

    def flush(self) -> None:
        """Send what is left, as far as the other side takes it."""
        while self._unsent:
            try:
                sent = self._connection.send(self._unsent)
            except BlockingIOError:
                return
            except OSError:  # the other side is gone
                self._unsent.clear()
                return
            del self._unsent[:sent]

    def receive(self) -> bytes | None:
        """The next frame; None at the end of the connection, or where it does not wait and none is complete."""
        while (frame := self._complete()) is None:
            try:
                read = self._connection.recv(_READ_BYTES)
            except BlockingIOError:
                return None
            except OSError:  # the other side went with something unread
                read = b""
            if not read:
                self.has_ended = True
                return None
            self._received += read
        return frame

    def close(self) -> None:
        """End the connection; safe to call twice."""
        self.has_ended = True
        self._connection.close()

    def _complete(self) -> bytes | None:
        """The first frame of what was received, taken out; None where it is not whole yet."""
        if len(self._received) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._received)
        end = _LENGTH.size + length
        if len(self._received) < end:
            return None
        frame = bytes(self._received[_LENGTH.size : end])
        del self._received[:end]
        return frame
