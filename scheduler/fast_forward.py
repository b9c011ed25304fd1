"""Steps taken together while nothing can change a decision: a domain whose sequences all decode, and nobody else.

For a simulator, which knows when the next request arrives. Where no request waits, none is rotated, none is about to
end, blocks are plenty and the policy would decode all it has, the steps until then are alike; `steady_stretch` says
how many, `advance` applies them. The result is that of as many calls of `plan` and `observe`, but for one thing: where
several domains correct one latency model, they do so in another order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from superinfer.profiler.latency_model import StepShape
from superinfer.scheduler.columns import (
    BLOCKS,
    COMMITTED,
    COMPUTED,
    IS_DECODING,
    MAX_TOKENS,
    PLANNED_OUTPUTS,
    PREFILL_TARGET,
    IntArray,
)
from superinfer.scheduler.policies.base import Policy
from superinfer.scheduler.policies.budget import BudgetPolicy
from superinfer.scheduler.policies.slack import SlackPolicy
from superinfer.scheduler.scheduler import Scheduler
from superinfer.scheduler.sequence import SequenceState

SPARE_BLOCKS = 0.1
"""Share of every domain's blocks that has to be free: no domain may preempt a sequence, for another might take it."""


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Up to `most_steps` steps that decode these sequences, if they take no longer than `lasts_s` together."""

    domain_id: str
    rows: IntArray
    sequences: list[SequenceState]
    shape: StepShape
    most_steps: int
    lasts_s: float

    def shape_of(self, step: int) -> StepShape:
        """What step number `step` (from 0) holds: each sequence has one more token by then."""
        shape = self.shape.copy()
        shape.decode_context += step * shape.decodes
        return shape


def steady_stretch(scheduler: Scheduler, domain_id: str, now: float) -> Stretch | None:
    """The stretch that may begin now, if no request arrives and no domain fails meanwhile; None where the next step
    has to be planned. No step of the domain may be in flight.
    """
    if scheduler.queues.count or not _is_known(scheduler.policy):
        return None
    domain, table = scheduler.domains[domain_id], scheduler.table
    if domain.rotated or domain.finished or domain.in_flight or not domain.running:
        return None
    if scheduler.bandwidth.is_used or scheduler.config.admission != "accept":
        return None
    rows = domain.running.rows
    counts = table.counts[rows]
    computed = counts[:, COMPUTED]
    if (computed < counts[:, PREFILL_TARGET]).any() or not counts[:, IS_DECODING].all():
        return None
    # The last token ends a sequence, and is left to a step of its own.
    most = int((counts[:, MAX_TOKENS] - counts[:, PLANNED_OUTPUTS]).min()) - 1
    size = scheduler.config.block_size
    if most < 2 or len(rows) > scheduler.config.max_step_tokens:
        return None
    missing = int((-(-(computed + most) // size) - counts[:, BLOCKS]).clip(0).sum())
    for each in scheduler.domains.values():
        taken = missing if each is domain else 0
        if each.is_up and each.device_blocks.free - taken < SPARE_BLOCKS * each.device_blocks.total:
            return None
    context = int(computed.sum())
    shape = StepShape(tokens=len(rows), decodes=len(rows), decode_context=context, rows=len(rows))
    sequences = list(domain.running.values())
    last = shape.copy()
    last.decode_context += most * len(rows)
    lasts_s = _lasts_s(scheduler.policy, sequences, last, now)
    return Stretch(domain_id, rows, sequences, shape, most, lasts_s) if lasts_s > 0.0 else None


def advance(scheduler: Scheduler, stretch: Stretch, durations_s: Sequence[float]) -> None:
    """Take one step of the stretch for each duration: tokens (all 0), blocks, counts, correction of the model."""
    steps = len(durations_s)
    domain, table = scheduler.domains[stretch.domain_id], scheduler.table
    table.counts[stretch.rows, COMPUTED] += steps
    table.counts[stretch.rows, PLANNED_OUTPUTS] += steps
    table.counts[stretch.rows, COMMITTED] += steps
    size = scheduler.config.block_size
    for sequence in stretch.sequences:
        sequence.outputs.extend([0] * steps)
        missing = -(-sequence.computed // size) - len(sequence.blocks)
        if missing > 0:
            taken = domain.device_blocks.take(missing)
            assert taken is not None, "a stretch has the blocks it needs"
            sequence.add_blocks(taken)
    for step, duration_s in enumerate(durations_s):
        scheduler.model.observe(stretch.shape_of(step), duration_s)
    scheduler.skipped(stretch.domain_id, steps, steps * len(stretch.sequences))


def _is_known(policy: Policy) -> bool:
    """Whether it is known when a policy decodes all it has: the slack policy, and those with the plain composition."""
    kind = type(policy)
    if issubclass(kind, BudgetPolicy):
        return kind.compose is BudgetPolicy.compose and kind.serve_running is BudgetPolicy.serve_running
    return kind is SlackPolicy


def _lasts_s(policy: Policy, sequences: list[SequenceState], last: StepShape, now: float) -> float:
    """For how long a known policy would decode all of these and do nothing else."""
    return policy.decodes_all_s(sequences, last, now) if isinstance(policy, SlackPolicy) else math.inf
