"""Frames come whole and in order, whatever the socket takes at a time and wherever it cuts."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superinfer.executor.frames import FrameSocket


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    yield pair
    for end in pair:
        end.close()


@given(frames=st.lists(st.binary(max_size=40), max_size=12), cuts=st.lists(st.integers(1, 30), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_frames_come_whole_and_in_order_wherever_the_stream_is_cut(frames: list[bytes], cuts: list[int]) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        stream = b"".join(len(frame).to_bytes(4, "little") + frame for frame in frames)
        receiver, found, begin = FrameSocket(theirs, waits=False), [], 0
        while begin < len(stream):
            size = cuts[begin % len(cuts)]
            ours.sendall(stream[begin : begin + size])
            begin += size
            while (frame := receiver.receive()) is not None:
                found.append(frame)
        assert found == frames
        assert receiver.receive() is None
        assert not receiver.has_ended


def test_what_the_other_side_does_not_take_yet_is_kept_and_sent_on(ends: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = FrameSocket(ends[0], waits=False), FrameSocket(ends[1], waits=True)
    frames = [bytes([number]) * 3_000_000 for number in range(3)]
    for frame in frames:
        sender.send(frame)
    assert sender.has_unsent
    found: list[bytes | None] = []
    reading = threading.Thread(target=lambda: found.extend(receiver.receive() for _ in frames))
    reading.start()
    while sender.has_unsent:
        sender.flush()
    reading.join(10)
    assert found == frames


def test_whoever_waits_learns_of_the_end_after_the_last_frame(ends: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = FrameSocket(ends[0], waits=True), FrameSocket(ends[1], waits=True)
    receiver.send(b"never read")
    sender.send(b"last")
    sender.close()
    assert receiver.receive() == b"last"
    assert receiver.receive() is None
    assert receiver.has_ended


def test_what_a_side_that_is_gone_is_sent_is_lost(ends: tuple[socket.socket, socket.socket]) -> None:
    sender = FrameSocket(ends[0], waits=False)
    ends[1].close()
    sender.send(b"for nobody")
    assert not sender.has_unsent
    assert sender.receive() is None
    assert sender.has_ended


def test_an_empty_frame_is_a_frame(ends: tuple[socket.socket, socket.socket]) -> None:
    FrameSocket(ends[0], waits=True).send(b"")
    assert FrameSocket(ends[1], waits=True).receive() == b""
