from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from superinfer.executor.runtime.cpu_sample import Sample
from superinfer.executor.runtime.cpu_sensors import CoreTimes

SECONDS = st.floats(0.0, 1e9)


def sample(busy_s: float, total_s: float) -> Sample:
    return Sample(0.0, CoreTimes(busy_s, total_s), None, None, None)


@given(SECONDS, SECONDS, SECONDS, SECONDS)
def test_use_is_a_share_whatever_the_counters_say(
    busy_before_s: float, total_before_s: float, busy_s: float, total_s: float
) -> None:
    use = sample(busy_s, total_s).busy_percent(sample(busy_before_s, total_before_s))
    assert use is None if total_s <= total_before_s else use is not None and 0.0 <= use <= 100.0


def test_cores_that_were_busy_half_of_the_time_are_half_used() -> None:
    assert sample(15.0, 40.0).busy_percent(sample(5.0, 20.0)) == 50.0
