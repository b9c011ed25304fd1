"""Ageing of best effort: turns come, come more often, and never cost a live contract its slack."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superinfer.contracts.errors import UsageError
from superinfer.scheduler.ageing import Ageing, claim_s, is_turn, steps_between_turns

AGEING = Ageing(after_s=60.0, first_steps=64, fewest_steps=4, slack_part=0.05)


def test_turns_begin_after_the_wait_and_double_whenever_it_doubles_down_to_the_fewest_steps() -> None:
    waits = [0.0, 59.9, 60.0, 119.9, 120.0, 240.0, 480.0, 960.0, 1e4, 1e9]
    assert [steps_between_turns(wait, AGEING) for wait in waits] == [None, None, 64, 64, 32, 16, 8, 4, 4, 4]


@given(st.floats(-1e3, 1e6))
def test_a_claim_is_a_part_of_the_slack(slack_s: float) -> None:
    assert claim_s(slack_s, AGEING) == max(AGEING.slack_part * slack_s, 0.0)


@given(st.floats(0.0, 1e12), st.integers(0, 1000))
def test_a_turn_comes_when_as_many_steps_as_the_wait_asks_for_have_gone_by(waited_s: float, steps: int) -> None:
    needed = steps_between_turns(waited_s, AGEING)
    assert is_turn(waited_s, steps, AGEING) == (needed is not None and steps >= needed)


@given(st.floats(60.0, 1e6), st.floats(1e-3, 100.0), st.integers(1, 2000))
def test_no_number_of_turns_uses_the_slack_up(waited_s: float, slack_s: float, steps: int) -> None:
    since, left_s, turns = 0, slack_s, 0
    for _ in range(steps):
        since += 1
        if is_turn(waited_s, since, AGEING):
            left_s, since, turns = left_s - claim_s(left_s, AGEING), 0, turns + 1
        assert left_s > 0.0
    between = steps_between_turns(waited_s, AGEING)
    assert between is not None
    assert turns == steps // between


def test_with_no_live_contract_nothing_limits_the_claim() -> None:
    assert claim_s(math.inf, AGEING) == math.inf


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"after_s": 0.0}, "after_s 0.0"),
        ({"after_s": math.inf}, "after_s inf"),
        ({"fewest_steps": 0}, "fewest_steps 0"),
        ({"fewest_steps": 65}, "fewest_steps 65"),
        ({"slack_part": 1.0}, "slack_part 1.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, float], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        Ageing(**options)  # type: ignore[arg-type]
