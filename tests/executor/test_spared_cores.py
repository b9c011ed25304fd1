"""Processes keep off the cores of workers that hold bandwidth, and come back."""

from __future__ import annotations

import os
import threading

import pytest

from superinfer.executor.spared_cores import LINGER_S, HeldCores, SparedCores

needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core alone cannot be spared")


@needs_two_cores
def test_every_thread_keeps_off_and_comes_back() -> None:
    usable = os.sched_getaffinity(0)
    spared = max(usable)
    done, native_id = threading.Event(), []
    thread = threading.Thread(target=lambda: (native_id.append(threading.get_native_id()), done.wait(10)))
    thread.start()
    own = SparedCores()
    try:
        own.spare([spared])
        assert os.sched_getaffinity(0) == usable - {spared}
        assert os.sched_getaffinity(native_id[0]) == usable - {spared}
    finally:
        own.spare([])
    assert os.sched_getaffinity(0) == os.sched_getaffinity(native_id[0]) == usable
    done.set()
    thread.join()


def test_where_no_other_core_is_left_nothing_changes() -> None:
    usable = os.sched_getaffinity(0)
    own = SparedCores()
    own.spare(usable)
    assert os.sched_getaffinity(0) == usable


def test_a_core_is_spared_for_a_while_after_it_was_held() -> None:
    cores = HeldCores()
    spared = []
    for lingers, held in ((-1.0, []), (0.0, [3, 1]), (0.5, [3]), (1.0, []), (2.0, [])):
        has_changed = cores.update(held, 7.0 + lingers * LINGER_S)
        assert has_changed == (cores.spared != (spared[-1] if spared else []))
        spared.append(cores.spared)
    assert spared == [[], [1, 3], [1, 3], [3], []]
