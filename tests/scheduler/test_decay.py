"""Decay profile: G and its inverse, static critical times, risk without overflow, clear errors."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superinfer.contracts.errors import UsageError
from superinfer.scheduler.decay import DecayProfile, guidance_warning, load_decay_profile

rates = st.floats(0.1, 10.0)


@st.composite
def profiles(draw: st.DrawFn) -> DecayProfile:
    thresholds = sorted(draw(st.sets(st.floats(1.0, 1000.0), max_size=4)))
    return DecayProfile(thresholds_ms=tuple(thresholds), rates=tuple(draw(rates) for _ in range(len(thresholds) + 1)))


@given(profiles(), st.floats(-5000.0, 5000.0))
def test_effective_slack_inverts_time_to_zero(profile: DecayProfile, slack_ms: float) -> None:
    there = profile.time_to_zero_ms(slack_ms)
    assert profile.effective_slack_ms(there) == pytest.approx(slack_ms, abs=1e-6, rel=1e-9)


@given(profiles(), st.floats(0.0, 3000.0), st.floats(0.0, 3000.0), st.floats(0.0, 4000.0))
def test_order_of_two_waiting_requests_never_flips(
    profile: DecayProfile, first_ms: float, second_ms: float, wait_ms: float
) -> None:
    """Integrate both step by step: whoever starts with less effective slack keeps less, as the static key says."""
    keys = profile.time_to_zero_ms(first_ms), profile.time_to_zero_ms(second_ms)
    after = [profile.effective_slack_ms(key - wait_ms) for key in keys]
    if keys[0] < keys[1]:
        assert after[0] <= after[1] + 1e-6


def test_time_to_zero_equals_numeric_integration_of_the_decay() -> None:
    profile = DecayProfile()
    slack, waited, dt = 300.0, 0.0, 0.01
    while slack > 0:
        rate = next(
            (r for t, r in zip(profile.thresholds_ms, profile.rates, strict=False) if slack <= t), profile.rates[-1]
        )
        slack -= rate * dt
        waited += dt
    assert profile.time_to_zero_ms(300.0) == pytest.approx(waited, rel=1e-3)


@given(st.floats(0.0, 100.0), st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_risk_never_overflows_and_never_falls_with_less_slack(k: float, slack_ms: float, base: float) -> None:
    profile = DecayProfile(decay_coefficient=k)
    risk = profile.log_risk(base, slack_ms)
    assert math.isfinite(risk)
    assert profile.log_risk(base, slack_ms - 10.0) >= risk


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rates: [1, 1]", "2 thresholds need 3 rates, got 2"),
        ("rates: [1, -1, 1]", "each must be a number > 0"),
        ("thresholds_ms: [200, 100]", "above the one before"),
        ("decay_coeficient: 1", "unknown key 'decay_coeficient'"),
        ("decay_coefficient: fast", "'fast' is not accepted; expected a number"),
        ("decay_coefficient: .nan", "a number >= 0 is expected"),
        ("- 1", "a mapping"),
        ("rates: [", "not valid YAML"),
        ("rates: 2020-13-45", "holds a value that cannot be read"),
        ("rates: [1]\nrates: [2]", "is given twice"),
        ("planner: 3", "planner: a mapping is expected"),
    ],
)
def test_broken_profile_files_are_refused_with_the_key_and_what_is_accepted(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "slack_decay_profile.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=str(path)) as caught:
        load_decay_profile(path)
    assert said in str(caught.value)


def test_guidance_warns_only_outside_its_ranges() -> None:
    assert guidance_warning(1.2, 150.0) is None
    assert guidance_warning(2.0, 3000.0) is None
    assert guidance_warning(9.0, 1000.0) is None
    assert "0.8–1.5" in (guidance_warning(2.0, 150.0) or "")
    assert "1.5–2.5" in (guidance_warning(1.0, 3000.0) or "")
