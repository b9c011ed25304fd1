"""Slack: how long a request may still wait (SPEC S1), over every milestone its contract has.

slack = deadline − now − predicted remaining time, where the remaining time is the request's own, unloaded one. What
load adds is the business of the reserve in `superinfer.scheduler.policies.slack`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.sequence import SequenceState


class Milestone(NamedTuple):
    """Slack towards one milestone, and the engine steps over which it may be spent."""

    slack_s: float
    steps_left: int
    time_left_s: float


def remaining_s(sequence: SequenceState, model: LatencyModel) -> float:
    """Predicted time to completion if the sequence had the device to itself."""
    left = sequence.outputs_left
    time_s = 0.0
    if sequence.prefill_left:
        time_s = model.prefill_s(sequence.computed, sequence.prefill_left)
        left -= 1
    return time_s + model.decodes_s(max(sequence.computed, sequence.prefill_target), left)


def milestones(sequence: SequenceState, model: LatencyModel, now: float) -> list[Milestone]:
    """Every bounded milestone still ahead; empty for best effort."""
    found: list[Milestone] = []
    if sequence.deadline_s < math.inf:
        time_left = sequence.deadline_s - now
        found.append(Milestone(time_left - remaining_s(sequence, model), sequence.outputs_left, time_left))
    if sequence.ttft_deadline_s < math.inf and sequence.planned_outputs == 0:
        time_left = sequence.ttft_deadline_s - now
        prefill = model.prefill_s(sequence.computed, max(sequence.prefill_left, 1))
        found.append(Milestone(time_left - prefill, 1, time_left))
    if sequence.tpot_s < math.inf and sequence.first_token_s is not None:
        # The bound is on the mean, so the token to be planned now is due by first token + index · bound.
        time_left = sequence.first_token_s + sequence.planned_outputs * sequence.tpot_s - now
        found.append(Milestone(time_left - model.decode_step_s(sequence.computed), 1, time_left))
    return found


def slack_s(sequence: SequenceState, model: LatencyModel, now: float) -> float:
    """The smallest slack over all milestones; infinite for best effort."""
    return min((m.slack_s for m in milestones(sequence, model, now)), default=math.inf)


def allowed_s(sequence: SequenceState) -> float:
    """How much time the sequence's contract allows, by its tightest milestone; infinite for best effort."""
    arrival = sequence.arrival_s
    return min(
        sequence.deadline_s - arrival,
        sequence.ttft_deadline_s - arrival,
        sequence.tpot_s * max(sequence.expected_outputs, 1),
    )
