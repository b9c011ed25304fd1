"""Makers of contracts, measurements and outcomes with only what a test cares about."""

from __future__ import annotations

import pytest

from superinfer.contracts.contract import Bound, SLOContract
from superinfer.results.outcome import Measurement, judge


def make_contract(latency_ms=1000.0, *, service_id="triage", ttft_ms=None, tpot_ms=None):
    def bounds(value):
        return () if value is None else (Bound(0.99, value),)

    return SLOContract(service_id=service_id, latency=bounds(latency_ms), ttft=bounds(ttft_ms), tpot=bounds(tpot_ms))


def make_measurement(number=0, *, scheduled_s=1.0, e2e_s=0.5, ttft_s=0.1, end="completed", **changes):
    completed = end == "completed"
    fields = {
        "request_id": f"r{number}",
        "service_id": "triage",
        "scheduled_s": scheduled_s,
        "sent_s": scheduled_s,
        "first_token_s": scheduled_s + ttft_s if completed else None,
        "finish_s": scheduled_s + e2e_s if completed else None,
        "prompt_tokens": 32,
        "output_tokens": 11 if completed else 0,
        "end": end,
        **changes,
    }
    return Measurement(**fields)


@pytest.fixture
def contract():
    return make_contract


@pytest.fixture
def measurement():
    return make_measurement


@pytest.fixture
def outcome():
    """Judge a measurement against a contract with a 1 s bound."""

    def make(number=0, *, bound=None, **changes):
        return judge(make_measurement(number, **changes), bound or make_contract())

    return make
