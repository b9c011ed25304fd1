"""Processes keep off the cores of workers that hold bandwidth, and come back."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from superinfer.executor import spared_cores
from superinfer.executor.spared_cores import LINGER_S, HeldCores, OwnCores

needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core alone cannot be spared")


@needs_two_cores
def test_every_thread_keeps_off_and_comes_back() -> None:
    usable = os.sched_getaffinity(0)
    spared = max(usable)
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    assert thread.native_id is not None
    own = OwnCores()
    try:
        own.keep_off([spared])
        assert os.sched_getaffinity(0) == usable - {spared}
        assert os.sched_getaffinity(thread.native_id) == usable - {spared}
        own.keep_off([])
        assert os.sched_getaffinity(0) == os.sched_getaffinity(thread.native_id) == usable
    finally:
        own.keep_off([])
        done.set()
        thread.join()


@needs_two_cores
def test_where_no_other_core_is_left_it_keeps_off_none() -> None:
    usable = os.sched_getaffinity(0)
    own = OwnCores()
    try:
        own.keep_off([max(usable)])
        own.keep_off(usable)
        assert os.sched_getaffinity(0) == usable
    finally:
        own.keep_off([])


@needs_two_cores
def test_what_could_not_be_done_is_done_when_it_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    usable = os.sched_getaffinity(0)
    own = OwnCores()
    own.keep_off([max(usable)])
    with monkeypatch.context() as patch:
        patch.setattr(spared_cores, "pin_threads", fail)
        own.keep_off([])
    assert os.sched_getaffinity(0) == usable - {max(usable)}
    own.keep_off([])
    assert os.sched_getaffinity(0) == usable


def fail(pid: int, cores: list[int]) -> None:
    raise OSError(errno.EMFILE, "Too many open files")


def test_a_core_is_spared_for_a_while_after_it_was_held() -> None:
    cores = HeldCores()
    spared = []
    for lingers, held in ((-1.0, []), (0.0, [3, 1]), (0.5, [3]), (1.0, []), (2.0, [])):
        has_changed = cores.update(held, 7.0 + lingers * LINGER_S)
        assert has_changed == (cores.spared != (spared[-1] if spared else []))
        spared.append(cores.spared)
    assert spared == [[], [1, 3], [1, 3], [3], []]
