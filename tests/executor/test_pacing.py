"""A paced step takes its time and spreads it evenly over what it moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superinfer.executor.pacing import Pace


class Time:
    def __init__(self) -> None:
        self.now = 5.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


@given(st.lists(st.floats(0.0, 0.2), min_size=1, max_size=20), st.floats(0.01, 2.0))
def test_no_part_ends_before_its_share_of_the_time(parts: list[float], duration_s: float) -> None:
    time = Time()
    pace = Pace(duration_s, clock=time.clock, sleep=time.sleep)
    share = 1.0 / len(parts)
    for number, work_s in enumerate(parts, start=1):
        time.now += work_s
        pace.moved(share)
        assert time.now >= 5.0 + duration_s * number * share - 1e-9


def test_a_step_that_is_slower_by_itself_sleeps_not_at_all() -> None:
    time = Time()
    pace = Pace(0.1, clock=time.clock, sleep=time.sleep)
    for _ in range(4):
        time.now += 0.05
        pace.moved(0.25)
    assert time.now == pytest.approx(5.2)


def test_a_step_that_pauses_first_has_all_of_its_time_after_that() -> None:
    time = Time()
    pace = Pace(0.1, 0.05, clock=time.clock, sleep=time.sleep)
    assert time.now == pytest.approx(5.05)
    pace.moved(1.0)
    assert time.now == pytest.approx(5.15)
    Pace(0.0, 0.05, clock=time.clock, sleep=time.sleep).moved(1.0)
    assert time.now == pytest.approx(5.2)
