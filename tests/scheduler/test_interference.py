"""Best effort is slowed until a holder can bear what it costs, and let go again when it costs less."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superinfer.scheduler.interference import (
    BEARABLE,
    BESIDE_STEPS,
    LEAST_SHARE,
    LONGEST_PAUSE_S,
    MOST_KEPT,
    QUIET_STEPS,
    HeldStep,
    Interference,
)

BANDWIDTH = 40.0
FREE = 12.0
"""What best effort moves a second where nothing holds it back."""
WEIGHT_GB = 0.3
STEP_S = 0.01
HOLDING = {"a"}


class Machine:
    """A holder's steps one after the other beside a domain of best effort, which costs `slope` a GB/s."""

    def __init__(self, slope: float, noise: float = 0.0, seed: int = 0, domains: tuple[str, ...] = ("b",)) -> None:
        self.interference = Interference(BANDWIDTH)
        self.slope, self.noise, self.bearable = slope, noise, BEARABLE
        self.now = 0.0
        self.costs: list[float] = []
        self.rates: list[float] = []
        self._random = random.Random(seed)
        self._moving: dict[str, tuple[float, float]] = dict.fromkeys(domains, (-1.0, -1.0))

    def _best_effort(self) -> None:
        for domain_id, (began_s, end_s) in self._moving.items():
            if end_s > self.now:
                continue
            if end_s >= 0.0:
                self.interference.moved(domain_id, began_s, end_s, WEIGHT_GB)
            rest_s = self.interference.pause_s(HOLDING, self.now)
            began_s = self.now + rest_s
            rate = min(FREE, self.interference.cap_gb_per_s(HOLDING)) / len(self._moving)
            self._moving[domain_id] = began_s, began_s + WEIGHT_GB / rate
            self.interference.planned(domain_id, began_s + WEIGHT_GB / rate)

    def _rate_until(self, end_s: float) -> float:
        rate = 0.0
        for began_s, ends_s in self._moving.values():
            shared_s = min(end_s, ends_s) - max(self.now, began_s)
            rate += WEIGHT_GB / (ends_s - began_s) * max(shared_s, 0.0) / (end_s - self.now)
        return rate

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self._best_effort()
            rate = self._rate_until(self.now + STEP_S)
            cost = self.slope * rate
            surprise = 0.2 + cost + self._random.gauss(0.0, self.noise)
            end_s = self.now + STEP_S * math.exp(surprise)
            self.interference.held(HeldStep("a", self.now, end_s, surprise, self.bearable))
            self.now = end_s
            self.costs.append(cost)
            self.rates.append(rate)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@given(slope=st.floats(0.003, 0.05), seed=st.integers(0, 100))
@settings(max_examples=25, deadline=None)
def test_what_best_effort_costs_falls_to_what_a_holder_can_bear(slope: float, seed: int) -> None:
    machine = Machine(slope, noise=0.02, seed=seed)
    machine.run(1500)
    late = machine.costs[-600:]
    least_cost = slope * LEAST_SHARE * BANDWIDTH
    assert mean(late) < 1.5 * max(BEARABLE, least_cost)
    assert mean(machine.rates[-600:]) > min(0.2 * BEARABLE / slope, 0.5 * FREE)  # nor much more than that


def test_best_effort_that_costs_nothing_moves_what_it_will() -> None:
    machine = Machine(0.0)
    machine.run(600)
    assert machine.interference.cap_gb_per_s(HOLDING) == math.inf


def test_it_gets_on_however_much_it_costs() -> None:
    machine = Machine(0.1)
    machine.run(2000)
    assert machine.interference.cap_gb_per_s(HOLDING) == pytest.approx(LEAST_SHARE * BANDWIDTH)
    assert min(machine.rates[-200:]) >= 0.0
    assert mean(machine.rates[-600:]) > 0.5 * LEAST_SHARE * BANDWIDTH


def test_when_it_costs_nothing_any_more_its_rate_rises_again() -> None:
    machine = Machine(0.03)
    machine.run(600)
    slowed = mean(machine.rates[-200:])
    assert slowed < 0.2 * FREE
    machine.slope = 0.0
    machine.run(2500)
    assert mean(machine.rates[-200:]) > 0.5 * FREE


def test_a_holder_that_needs_less_than_it_has_bears_more() -> None:
    machine = Machine(0.02)
    machine.bearable = 0.3
    machine.run(600)
    assert machine.interference.cap_gb_per_s(HOLDING) > FREE


@pytest.mark.parametrize("domains", [("b",), ("b", "c"), ("b", "c", "d")])
def test_all_best_effort_rests_together_now_and_then(domains: tuple[str, ...]) -> None:
    machine = Machine(0.01, domains=domains)
    machine.run(400)
    quiet = [number for number, rate in enumerate(machine.rates) if rate == 0.0]
    assert len(quiet) >= 3 * QUIET_STEPS
    assert len(quiet) < 0.3 * len(machine.rates)


def test_no_rest_is_asked_for_before_there_is_something_to_compare() -> None:
    interference = Interference(BANDWIDTH)
    assert interference.pause_s(HOLDING, 0.0) == 0.0
    interference.planned("b", 1.0)
    for number in range(BESIDE_STEPS):
        assert interference.pause_s(HOLDING, 0.01 * number) == 0.0
        interference.held(HeldStep("a", 0.01 * number, 0.01 * number + 0.01, 0.0, BEARABLE))
    assert interference.pause_s(HOLDING, 0.5) == 0.0  # what was moved beside them is not known yet
    interference.moved("b", 0.0, 1.0, 10 * WEIGHT_GB)
    rest_s = interference.pause_s(HOLDING, 1.0)
    assert rest_s == pytest.approx(0.01 * (QUIET_STEPS + 1))
    assert interference.pause_s(HOLDING, 1.0 + rest_s / 2) == pytest.approx(
        rest_s / 2
    )  # whoever comes meanwhile rests as well
    assert interference.pause_s(HOLDING, 1.0 + 2 * rest_s) == 0.0


def test_a_domain_that_died_with_a_step_in_flight_holds_nothing_up() -> None:
    machine = Machine(0.03, domains=("b", "c"))
    machine.run(60)
    machine.interference.failed("c")
    del machine._moving["c"]
    machine.run(400)
    assert mean(machine.costs[-100:]) < 1.5 * BEARABLE


def test_a_step_that_was_interrupted_counts_as_a_long_one_no_more() -> None:
    machine = Machine(0.0)
    machine.run(200)
    began_s = machine.now
    machine.interference.held(HeldStep("a", began_s, began_s + 5.0, 6.0, BEARABLE))
    machine.now += 5.0
    machine.run(200)
    assert machine.interference.cap_gb_per_s(HOLDING) > 0.3 * FREE


def test_a_domain_that_holds_nothing_any_more_limits_nobody_until_it_does_again() -> None:
    machine = Machine(0.03)
    machine.run(600)
    found = machine.interference.cap_gb_per_s(HOLDING)
    assert found < 0.2 * FREE
    assert machine.interference.cap_gb_per_s({"c"}) == math.inf
    assert machine.interference.cap_gb_per_s(HOLDING) == found


def test_no_pause_is_long_whatever_a_step_took_and_others_are_about() -> None:
    machine = Machine(0.01)
    machine.run(20)
    machine.interference.planned("slow", machine.now + 60.0)
    for _ in range(BESIDE_STEPS + 10):
        began_s = machine.now
        machine.now += STEP_S
        machine.interference.held(HeldStep("a", began_s, machine.now, 0.2, BEARABLE))
    machine.interference.held(HeldStep("a", machine.now, machine.now + 3.0, 5.9, BEARABLE))
    machine.interference.moved("b", 0.0, machine.now, 30.0)
    machine.interference.moved("slow", 0.0, machine.now + 3.0, 30.0)
    machine.interference.planned("slow", machine.now + 60.0)
    assert 0.0 < machine.interference.pause_s(HOLDING, machine.now) <= LONGEST_PAUSE_S


def test_steps_beside_traffic_that_is_forgotten_say_nothing() -> None:
    interference = Interference(BANDWIDTH)
    interference.planned("slow", 9.0)
    for number in range(90):
        interference.held(HeldStep("a", 0.1 * number, 0.1 * number + 0.1, 0.5, BEARABLE))
    for number in range(2 * MOST_KEPT):
        interference.planned("b", 0.0)
        interference.moved("b", 0.018 * number, 0.018 * (number + 1), 0.5)
    interference.moved("slow", 0.0, 9.3, 1.0)
    assert interference.usual("a") == 0.0  # no comparison: there was no quiet step
