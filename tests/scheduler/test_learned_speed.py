"""Each domain's speed is its own: what one teaches changes no prediction for another."""

from __future__ import annotations

import pytest

from superinfer.profiler.latency_model import LatencyModel, StepShape
from superinfer.scheduler.learned_speed import LearnedSpeeds

SHAPE = StepShape(tokens=1, decodes=1, decode_context=10, rows=1)


@pytest.fixture
def model() -> LatencyModel:
    return LatencyModel(
        launch_s=0.01,
        linear_points=[(1, 0.0), (256, 0.5)],
        decode_context_s=0.0,
        decode_s=0.0,
        prefill_pair_s=0.0,
        chunk_s=0.0,
        row_s=0.0,
    )


def test_a_slow_domain_makes_no_other_look_slow(model: LatencyModel) -> None:
    speeds = LearnedSpeeds(model)
    for _ in range(60):
        for domain_id, factor in (("slow", 1.5), ("fast", 0.9)):
            speeds.learn(domain_id, SHAPE, factor * model.uncorrected_step_s(SHAPE))
    speeds.speak_for("slow")
    assert model.correction == pytest.approx(1.5, rel=0.01)
    speeds.speak_for("fast")
    assert model.correction == pytest.approx(0.9, rel=0.01)
    speeds.speak_for_all()
    assert model.correction == pytest.approx(1.2, rel=0.01)


def test_a_new_domain_begins_with_what_the_others_have_learnt(model: LatencyModel) -> None:
    speeds = LearnedSpeeds(model)
    for _ in range(60):
        speeds.learn("known", SHAPE, 1.5 * model.uncorrected_step_s(SHAPE))
    speeds.speak_for("new")
    assert model.correction == pytest.approx(1.5, rel=0.01)
    speeds.learn("known", SHAPE, 3.0 * model.uncorrected_step_s(SHAPE))
    speeds.speak_for("new")
    assert model.correction == pytest.approx(1.5, rel=0.01)
