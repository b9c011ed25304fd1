"""Steps taken together while nothing can change a decision: a domain whose sequences all decode, and nobody else.

For a simulator, which knows when the next request arrives. Where no request waits, none is rotated, blocks are plenty
and the policy would decode all it has, steps differ only in how far each sequence has come: a compiled loop takes them
one after the other (`superinfer.scheduler.policies.stretch_kernel`). The result is that of as many calls of `plan` and
`observe`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from superinfer.profiler.latency_model import StepShape
from superinfer.scheduler.columns import FloatArray
from superinfer.scheduler.policies import step_state as at
from superinfer.scheduler.policies.base import Policy
from superinfer.scheduler.policies.budget import BudgetPolicy
from superinfer.scheduler.policies.slack import SlackPolicy
from superinfer.scheduler.policies.step_state import Step
from superinfer.scheduler.policies.stretch_kernel import (
    END_S,
    LAST_CONTEXT,
    LAST_DURATION_S,
    are_decoding,
    decode_stretch,
)
from superinfer.scheduler.scheduler import Scheduler
from superinfer.scheduler.sequence import SequenceState
from superinfer.scheduler.step_memory import Ground

SPARE_BLOCKS = 0.1
"""Share of every domain's blocks that has to be free: no domain may preempt a sequence, for another might take it."""


@dataclass(frozen=True, slots=True, eq=False)
class Horizon:
    """Until when nothing happens: the next arrival, before which a step has to begin, and the next fault, before which
    it has to end.
    """

    arrival_s: float
    fault_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Steps that decode these sequences, each once a step. All that came of them is counted but what the last of them
    teaches the latency model, and that sequences end with it: see `end_stretch`.
    """

    domain_id: str
    sequences: list[SequenceState]
    steps: int
    end_s: float
    last_shape: StepShape
    last_duration_s: float


def take_stretch(
    scheduler: Scheduler, domain_id: str, now: float, horizon: Horizon, noise: FloatArray, overhead_s: float
) -> Stretch | None:
    """Take the steps that begin now; None where the next step has to be planned.

    At most one for each element of `noise`, a factor on its predicted time; `overhead_s` lies before each.
    """
    domain, policy, ground = scheduler.domains[domain_id], scheduler.policy, scheduler.ground_of(domain_id)
    if scheduler.queues.count or domain.rotated or domain.in_flight or not domain.running or not _is_known(policy):
        return None
    config, rows = ground.config, domain.running.rows
    if scheduler.bandwidth.is_used or scheduler.has_suspects:
        return None
    if config.admission != "accept" or len(rows) > config.max_step_tokens:
        return None
    if config.save_interval_s is not None or config.prefix_cache:
        return None
    spare = min(each.device_blocks.free - SPARE_BLOCKS * each.device_blocks.total for each in scheduler.domains_up)
    if spare < 0 or not are_decoding(scheduler.table.counts, rows):
        return None
    scheduler.speeds.speak_for(domain_id)
    step = _step(scheduler, ground, now)
    model, result = ground.model, np.empty(3, np.float64)
    step.figures[at.UPPER_RATIO] = model.upper
    steps: int = decode_stretch(
        step,
        rows,
        noise,
        horizon.arrival_s,
        horizon.fault_s,
        overhead_s,
        model.correction_gain,
        int(domain.device_blocks.free - SPARE_BLOCKS * domain.device_blocks.total),
        result,
    )
    if not steps:
        return None
    if isinstance(policy, SlackPolicy):
        policy.decoded_all(domain_id)
    model.correction, model.upper = float(step.figures[at.CORRECTION]), float(step.figures[at.UPPER_RATIO])
    scheduler.speeds.keep(domain_id)
    sequences = domain.running.sequences
    tokens = [0] * steps
    for sequence in sequences:
        sequence.outputs.extend(tokens)
    if grown := int(step.state[at.GROWN]):
        blocks = domain.device_blocks.take(grown)
        assert blocks is not None, "a stretch has the blocks it needs"
        for sequence, block in zip(scheduler.table.sequences(step.growing[:grown]), blocks, strict=True):
            sequence.blocks.append(block)
    scheduler.skipped(domain_id, steps, steps * len(sequences))
    number, context = len(sequences), int(result[LAST_CONTEXT])
    shape = StepShape(tokens=number, decodes=number, decode_context=context, rows=number)
    end_s, duration_s = float(result[END_S]), float(result[LAST_DURATION_S])
    if scheduler.placement is not None:
        planned_s = end_s - duration_s - overhead_s
        scheduler.placement.queues.note_stretch(domain_id, planned_s + model.step_s(shape))
    return Stretch(domain_id, sequences, steps, end_s, shape, duration_s)


def _step(scheduler: Scheduler, ground: Ground, now: float) -> Step:
    """What the compiled loop works on; with no classes where the policy decodes whatever it has."""
    policy = scheduler.policy
    if isinstance(policy, SlackPolicy):
        return policy.decoding_step(ground, now, len(scheduler.domains_up))
    state, figures = np.zeros(at.STATE, np.int64), np.zeros(at.FIGURES, np.float64)
    state[at.BLOCK_SIZE] = scheduler.config.block_size
    figures[at.NOW], figures[at.CORRECTION] = now, ground.model.correction
    nobody, nothing = np.empty(0, np.int64), np.empty(0, np.float64)
    return Step(
        scheduler.table.counts,
        scheduler.table.times,
        nobody,
        nobody,
        ground.constants,
        ground.points,
        np.empty((0, 4), np.float64),
        np.empty((0, at.LEVEL_FIGURES), np.float64),
        figures,
        state,
        nobody,
        nothing,
        ground.chosen,
        ground.growing,
    )


def _is_known(policy: Policy) -> bool:
    """Whether it is known when a policy decodes all it has: the slack policy, and those with the plain composition."""
    kind = type(policy)
    if issubclass(kind, BudgetPolicy):
        return kind.compose is BudgetPolicy.compose and kind.serve_running is BudgetPolicy.serve_running
    return kind is SlackPolicy
