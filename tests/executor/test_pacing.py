"""A step that gives way takes its time, spreads it evenly over what it moves, and leaves its core to others."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superinfer.executor.idle_class import IdleClass, recall
from superinfer.executor.pacing import Pace
from superinfer.executor.time_slices import ask_for_slices
from superinfer.scheduler.steps import StepPlan


class Time:
    def __init__(self) -> None:
        self.now = 5.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


class Class(IdleClass):
    """Remembers whether its thread is in it."""

    def __init__(self) -> None:
        self.is_in = False

    def enter(self) -> None:
        self.is_in = True

    def leave(self) -> None:
        self.is_in = False


def step(time: Time, paced_s: float = 0.0, pause_s: float = 0.0, idle_class: Class | None = None) -> Pace:
    plan = StepPlan(domain_id="0", step_id=1, leaves_core=idle_class is not None, paced_s=paced_s, pause_s=pause_s)
    return Pace(plan, idle_class or Class(), clock=time.clock, sleep=time.sleep)


def entered(pace: Pace) -> Callable[[float], None]:
    moved = pace.__enter__()
    assert moved is not None
    return moved


@given(st.lists(st.floats(0.0, 0.2), min_size=1, max_size=20), st.floats(0.01, 2.0))
def test_no_part_ends_before_its_share_of_the_time(parts: list[float], duration_s: float) -> None:
    time = Time()
    moved = entered(step(time, duration_s))
    share = 1.0 / len(parts)
    for number, work_s in enumerate(parts, start=1):
        time.now += work_s
        moved(share)
        assert time.now >= 5.0 + duration_s * number * share - 1e-9


def test_a_step_that_is_slower_by_itself_sleeps_not_at_all() -> None:
    time = Time()
    moved = entered(step(time, 0.1))
    for _ in range(4):
        time.now += 0.05
        moved(0.25)
    assert time.now == pytest.approx(5.2)


def test_a_step_that_pauses_first_has_all_of_its_time_after_that() -> None:
    time = Time()
    moved = entered(step(time, 0.1, 0.05))
    assert time.now == pytest.approx(5.05)
    moved(1.0)
    assert time.now == pytest.approx(5.15)
    entered(step(time, 0.0, 0.05))(1.0)
    assert time.now == pytest.approx(5.2)


def test_a_step_beside_nothing_is_told_nothing() -> None:
    idle_class = Class()
    with Pace(StepPlan(domain_id="0", step_id=1), idle_class) as moved:
        assert moved is None
        assert not idle_class.is_in


@pytest.mark.parametrize("paced_s", [0.0, 0.1])
def test_a_step_leaves_its_core_to_others_until_it_ends(paced_s: float) -> None:
    idle_class = Class()
    with step(Time(), paced_s, idle_class=idle_class) as moved:
        assert (moved is not None) == (paced_s > 0.0)
        assert idle_class.is_in
    assert not idle_class.is_in


def test_a_step_that_fails_leaves_the_class_as_well() -> None:
    idle_class = Class()
    with pytest.raises(ValueError), step(Time(), idle_class=idle_class):
        raise ValueError
    assert not idle_class.is_in


def usable_class() -> IdleClass:
    if not (idle_class := IdleClass()).is_open:
        pytest.skip("this process is in another class, or may not leave SCHED_IDLE")
    return idle_class


def test_the_idle_class_is_left_as_it_was_entered() -> None:
    idle_class = usable_class()
    idle_class.enter()
    assert os.sched_getscheduler(0) == os.SCHED_IDLE
    idle_class.leave()
    ask_for_slices(0.0)
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_a_class_that_cannot_be_left_any_more_is_not_entered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    idle_class, entered = usable_class(), []

    def set_scheduler(thread_id: int, policy: int, parameters: os.sched_param) -> None:
        if policy == os.SCHED_OTHER:
            raise PermissionError
        entered.append(policy)

    monkeypatch.setattr(os, "sched_setscheduler", set_scheduler)
    for _ in range(2):
        idle_class.enter()
        idle_class.leave()
    assert entered == [os.SCHED_IDLE]


def test_another_process_is_recalled_from_the_class() -> None:
    usable_class()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)  # until the parent closes its side
        os._exit(0)
    try:
        os.sched_setscheduler(child, os.SCHED_IDLE, os.sched_param(0))
        assert recall(child)
        assert os.sched_getscheduler(child) == os.SCHED_OTHER
        assert not recall(child)
    finally:
        os.close(write)
        os.waitpid(child, 0)
        os.close(read)
    assert not recall(child)  # one that has ended is no error


def test_who_leaves_its_core_gets_next_to_nothing_beside_another_of_its_group() -> None:
    """Two processes on one core: the kernel's word on the class that steps enter."""
    idle_class, cores = usable_class(), os.sched_getaffinity(0)
    core = max(cores)
    os.sched_setaffinity(0, {core})
    read, write = os.pipe()
    rival = os.fork()
    if rival == 0:
        os.write(write, b"x")
        end = time.process_time() + 0.2
        while time.process_time() < end:
            pass
        os._exit(0)
    try:
        idle_class.enter()
        os.read(read, 1)
        own_s = time.thread_time()
        while os.waitpid(rival, os.WNOHANG) == (0, 0):
            pass
        own_s = time.thread_time() - own_s
        rival = 0
        assert own_s < 0.1
    finally:
        idle_class.leave()
        ask_for_slices(0.0)
        os.sched_setaffinity(0, cores)
        if rival:
            os.waitpid(rival, 0)
        os.close(read)
        os.close(write)
