"""A simulated device is noisy as a real one: each step by itself, and its speed over time, however long steps are."""

from __future__ import annotations

import numpy as np
import pytest
from small_model import MODEL

from superinfer.executor.simulated import SimulatedDevice
from superinfer.profiler.drift import Drift
from superinfer.scheduler.request import SamplingParams
from superinfer.scheduler.steps import NewSequence, StepPlan

DRIFT = Drift(sigma=0.2, lasts_s=2.0)


def logarithms(every_s: float, count: int, seed: int = 0) -> np.ndarray:
    """Logarithms of what the drift makes of steps that begin so far apart."""
    device = SimulatedDevice("0", MODEL.fresh(), drift=DRIFT, seed=seed)
    sampling = SamplingParams(max_tokens=1_000_000, ignore_eos=True)
    new, took = [NewSequence(sequence_id=1, token_ids=[0], prompt_length=1, sampling=sampling)], []
    for number in range(count):
        device.now = number * every_s
        plan = StepPlan(domain_id="0", step_id=number, new_sequences=new, decodes=[1])
        took.append(device.execute(plan).duration_s)
        new = []
    model = MODEL.fresh()
    return np.log(np.array(took) / [model.decode_step_s(context) for context in range(count)])


@pytest.mark.parametrize("every_s", [0.1, 1.0])
def test_the_drift_goes_on_by_time_and_not_by_steps(every_s: float) -> None:
    found = logarithms(every_s, 6000)
    assert found.std() == pytest.approx(DRIFT.sigma, rel=0.15)
    apart = round(DRIFT.lasts_s / every_s)
    alike = np.corrcoef(found[:-apart], found[apart:])[0, 1]
    assert alike == pytest.approx(np.exp(-1.0), abs=0.12)


def test_the_drift_adds_no_work_in_the_mean() -> None:
    assert np.exp(logarithms(20.0, 6000)).mean() == pytest.approx(1.0, abs=0.01)


def test_devices_of_other_seeds_drift_otherwise() -> None:
    assert not np.allclose(logarithms(0.5, 20, seed=1), logarithms(0.5, 20, seed=2))
    assert np.array_equal(logarithms(0.5, 20, seed=1), logarithms(0.5, 20, seed=1))
