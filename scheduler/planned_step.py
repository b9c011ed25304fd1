"""A composed step as the worker gets it, and as the scheduler remembers it until it is observed."""

from __future__ import annotations

import numpy as np

from superinfer.scheduler.domain import Batch, InFlightStep, Pacing
from superinfer.scheduler.step_builder import StepBuilder
from superinfer.scheduler.steps import StepPlan


def send_off(builder: StepBuilder, pacing: Pacing) -> StepPlan:
    """The plan of a complete step, which is in flight on its domain from now on."""
    domain = builder.domain
    batch, table, chosen = domain.batch, builder.table, builder.chosen_rows
    batch = domain.batch = Batch.of(table, np.sort(chosen)) if batch is None else batch.after(table, chosen)
    plan = StepPlan(
        domain_id=domain.domain_id,
        step_id=domain.next_step_id,
        finished=domain.finished,
        rotate_out=builder.rotate_out_list,
        rotate_in=builder.rotate_in_list,
        copies=builder.copies,
        saves=builder.saves,
        partial_saves=builder.partial_saves,
        new_sequences=builder.new_sequences,
        decodes=batch.sequence_ids,
        decode_blocks=builder.decode_blocks,
        sequences=builder.chunks,
        predicted_s=pacing.pause_s + max(builder.step_s, pacing.paced_s),
        leaves_core=pacing.leaves_core,
        paced_s=pacing.paced_s,
        pause_s=pacing.pause_s,
    )
    domain.finished = []
    domain.next_step_id += 1
    domain.in_flight[plan.step_id] = InFlightStep(
        plan.step_id,
        builder.shape,
        batch,
        builder.prefills,
        starts=[chunk.start for chunk in builder.chunks],
        ends=[chunk.start + chunk.count for chunk in builder.chunks],
        rotated_out=[rotation.sequence_id for rotation in builder.rotate_out_list],
        rotated_in=[rotation.sequence_id for rotation in builder.rotate_in_list],
        lent=builder.lent,
        saved_before=builder.saved_before,
        pacing=pacing,
    )
    return plan
