from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superinfer.contracts.errors import UsageError
from superinfer.scheduler.ledger import BandwidthLedger, BandwidthRefusal, DeviceBandwidth, Priority, Reservation

DEVICES = ("gpu-0", "gpu-1")
LIMIT = 90.0


def ledger() -> BandwidthLedger:
    return BandwidthLedger(DeviceBandwidth(device, 100.0, 0.9) for device in DEVICES)


def granted(result: Reservation | BandwidthRefusal) -> Reservation:
    assert isinstance(result, Reservation), result
    return result


def refused(result: Reservation | BandwidthRefusal) -> BandwidthRefusal:
    assert isinstance(result, BandwidthRefusal), result
    return result


reserve_calls = st.tuples(
    st.just("reserve"),
    st.sampled_from(DEVICES),
    st.floats(0.1, 120.0),
    st.floats(1.0, 3000.0),
    st.sampled_from(list(Priority)),
    st.sampled_from("abcd"),
    st.booleans(),
)
calls = st.one_of(
    reserve_calls,
    reserve_calls,
    st.tuples(st.just("release"), st.integers(0, 20)),
    st.tuples(st.just("release_owner"), st.sampled_from("abcd")),
    st.tuples(st.just("wait"), st.floats(0.0, 2.0)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(calls, max_size=25))
def test_no_device_is_ever_over_committed_and_nothing_outlives_its_release(history: list[tuple]) -> None:
    book = ledger()
    now = 5.0
    # Every grant with the window in which it really held: cut short by release, displacement or its end.
    windows: dict[int, tuple[str, str, float, float, float]] = {}

    def cut(reservation_id: int) -> None:
        device, owner, rate, start, end = windows[reservation_id]
        windows[reservation_id] = (device, owner, rate, start, min(end, now))

    for call in history:
        if call[0] == "wait":
            now += call[1]
        elif call[0] == "release":
            held = call[1] in windows and windows[call[1]][4] > now
            assert book.release(call[1], now) == held
            if held:
                cut(call[1])
        elif call[0] == "release_owner":
            for ended in book.release_owner(call[1], now):
                cut(ended.reservation_id)
            assert all(end <= now for _, owner, _, _, end in windows.values() if owner == call[1])
        else:
            _, device, rate, duration_ms, priority, owner, preempt = call
            result = book.reserve(device, rate, duration_ms, priority, owner, now, preempt=preempt)
            if isinstance(result, Reservation):
                assert preempt or not result.displaced
                for victim in result.displaced:
                    assert victim.priority < priority
                    cut(victim.reservation_id)
                windows[result.reservation_id] = (device, owner, rate, now, result.end_s)
        for device in DEVICES:
            live = {number for number, window in windows.items() if window[0] == device and window[4] > now}
            assert {each.reservation_id for each in book.reservations(device, now)} == live
    for device in DEVICES:
        chosen = [window for window in windows.values() if window[0] == device]
        for instant in {start for *_, start, _ in chosen}:
            total = math.fsum(rate for _, _, rate, start, end in chosen if start <= instant < end)
            assert total <= LIMIT


@settings(max_examples=60, deadline=None)
@given(st.lists(reserve_calls, max_size=12), st.floats(0.1, 100.0), st.floats(1.0, 2000.0))
def test_a_refused_request_fits_at_the_retry_time_it_was_told_and_not_now(
    history: list[tuple], rate: float, duration_ms: float
) -> None:
    book = ledger()
    for number, (_, device, each_rate, each_ms, priority, owner, _) in enumerate(history):
        book.reserve(device, each_rate, each_ms, priority, owner, number * 0.1)
    now = len(history) * 0.1
    result = book.reserve("gpu-0", rate, duration_ms, Priority.LOW, "x", now)
    if isinstance(result, BandwidthRefusal):
        assert result.available_gb_per_s < rate
        if rate > LIMIT:
            assert (result.limit, result.retry_after_s) == ("device", None)
        else:
            assert result.limit == "reserved"
            assert result.retry_after_s is not None
            ends = max(each.end_s for each in result.holders)
            at = min(now + result.retry_after_s + 1e-9, ends)
            granted(book.reserve("gpu-0", rate, duration_ms, Priority.LOW, "x", at))


@settings(max_examples=60, deadline=None)
@given(st.lists(reserve_calls, max_size=12), st.floats(0.0, 2.0))
def test_best_effort_may_move_the_bandwidth_less_the_reserved_integrated_over_the_window(
    history: list[tuple], length_s: float
) -> None:
    book = ledger()
    now = 0.0
    for number, (_, device, rate, duration_ms, priority, owner, preempt) in enumerate(history):
        now = number * 0.2
        book.reserve(device, rate, duration_ms, priority, owner, now, preempt=preempt)
    held = book.reservations("gpu-0", now)
    expected = 100.0 * length_s - sum(
        each.bandwidth_gb_per_s * max(min(each.end_s, now + length_s) - now, 0.0) for each in held
    )
    movable = book.best_effort_gb("gpu-0", now, now + length_s)
    assert movable == pytest.approx(expected, abs=1e-6)
    assert movable >= 10.0 * length_s - 1e-6


def test_asking_about_a_later_window_ends_nothing() -> None:
    book = ledger()
    book.reserve("gpu-0", 60, 1000, Priority.HIGH, "a", 0.0)
    assert book.best_effort_gb("gpu-0", 0.5, 1.5) == pytest.approx(100.0 - 30.0)
    assert book.best_effort_gb("gpu-0", 2.0, 3.0) == pytest.approx(100.0)
    assert book.best_effort_gb("gpu-0", 3.0, 3.0) == 0.0
    assert book.reserved_gb_per_s("gpu-0", 0.1) == {"a": 60}
    refused(book.reserve("gpu-0", 40, 100, Priority.HIGH, "b", 0.1))


def test_a_refusal_names_the_limit_and_the_holders() -> None:
    book = ledger()
    book.reserve("gpu-0", 50, 500, Priority.HIGH, "triage", 0.0)
    book.reserve("gpu-0", 30, 900, Priority.LOW, "reports", 0.0)
    refusal = refused(book.reserve("gpu-0", 20, 100, Priority.HIGH, "chat", 0.1))
    assert refusal.message == (
        "gpu-0: 20 GB/s cannot be reserved: 10 of 90 GB/s are free in the window; reserved: triage 50, reports 30"
    )
    assert refusal.retry_after_s == pytest.approx(0.4)
    never = refused(book.reserve("gpu-1", 91, 100, Priority.HIGH, "chat", 0.1))
    assert never.message == "gpu-1: 91 GB/s cannot be reserved: at most 90 GB/s of this device may be reserved at all"


def test_preemption_takes_the_lowest_then_the_latest_and_never_more_than_needed() -> None:
    book = ledger()
    first = granted(book.reserve("gpu-0", 20, 1000, Priority.LOW, "first", 0.0))
    normal = granted(book.reserve("gpu-0", 40, 1000, Priority.NORMAL, "normal", 0.0))
    second = granted(book.reserve("gpu-0", 20, 1000, Priority.LOW, "second", 0.0))
    small = granted(book.reserve("gpu-0", 5, 1000, Priority.LOW, "small", 0.0))
    taken = granted(book.reserve("gpu-0", 25, 1000, Priority.HIGH, "urgent", 0.1, preempt=True))
    assert [each.owner for each in taken.displaced] == ["second"]
    assert second.reservation_id not in {each.reservation_id for each in book.reservations("gpu-0", 0.1)}
    held = [each.reservation_id for each in book.reservations("gpu-0", 0.1)]
    assert held == [first.reservation_id, normal.reservation_id, small.reservation_id, taken.reservation_id]


def test_preemption_that_cannot_make_room_ends_nobody_and_equals_stay() -> None:
    book = ledger()
    book.reserve("gpu-0", 60, 1000, Priority.HIGH, "a", 0.0)
    book.reserve("gpu-0", 20, 1000, Priority.LOW, "b", 0.0)
    refused(book.reserve("gpu-0", 40, 1000, Priority.HIGH, "c", 0.0, preempt=True))
    assert book.reserved_gb_per_s("gpu-0", 0.0) == {"a": 60, "b": 20}


@pytest.mark.parametrize(
    ("device", "rate", "duration", "words"),
    [
        ("gpu-9", 1, 1, "known: gpu-0, gpu-1"),
        ("gpu-0", 0, 1, "bandwidth_gb_per_s 0"),
        ("gpu-0", math.nan, 1, "bandwidth_gb_per_s nan"),
        ("gpu-0", 1, math.inf, "duration_ms inf"),
    ],
)
def test_wrong_arguments_are_named(device: str, rate: float, duration: float, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ledger().reserve(device, rate, duration, Priority.LOW, "a", 0.0)
