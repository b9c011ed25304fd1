"""When the requests of a dead domain go on, however far they had come."""

from __future__ import annotations

import pytest

from superinfer.executor.recovery import Recovery
from superinfer.scheduler.request import SamplingParams
from superinfer.scheduler.steps import NewSequence, StepPlan, StepResult


def new(sequence_id: int, *, tokens: int, computed: int) -> NewSequence:
    """A sequence with a prompt of ten tokens."""
    return NewSequence(
        sequence_id=sequence_id,
        token_ids=[0] * tokens,
        prompt_length=10,
        sampling=SamplingParams(max_tokens=20),
        computed=computed,
    )


@pytest.mark.parametrize(("tokens", "computed", "recomputed"), [(14, 13, 0), (14, 8, 5), (10, 0, 0)])
def test_the_first_step_with_what_the_dead_domain_held_is_known_once_it_has_run(
    tokens: int, computed: int, recomputed: int
) -> None:
    recovery = Recovery("0", 5.0, [7, 8])
    another = StepPlan(domain_id="1", step_id=1, new_sequences=[new(3, tokens=12, computed=11)])
    moved = StepPlan(domain_id="1", step_id=2, new_sequences=[new(7, tokens=tokens, computed=computed)])
    for plan in (another, moved, StepPlan(domain_id="1", step_id=3, new_sequences=[new(8, tokens=12, computed=0)])):
        recovery.planned(plan)
    assert not recovery.has_started(StepResult(domain_id="1", step_id=1, started_s=6.0, finished_s=6.1))
    assert recovery.has_started(StepResult(domain_id="1", step_id=2, started_s=6.2, finished_s=6.3))
    resumed = recovery.resumed
    assert (resumed.dead_domain_id, resumed.domain_id, resumed.started_s) == ("0", "1", 6.2)
    assert (resumed.requests, resumed.recomputed_tokens) == (1, recomputed)
