"""What reservations of memory bandwidth mean for one step: who has to wait, who holds back, how it gives way."""

from __future__ import annotations

import numpy as np

from superinfer.scheduler.bandwidth import BandwidthGate, is_unreserved
from superinfer.scheduler.domain import NOT_PACED, Pacing
from superinfer.scheduler.step_builder import StepBuilder


def limit_bandwidth(builder: StepBuilder, gate: BandwidthGate) -> None:
    """Hide what finds no room for its reservation, and hold back what best effort would move beyond the rest."""
    domain, queues, now = builder.domain, builder.queues, builder.now
    waiting = queues.contract_ids()
    hidden = gate.hidden(domain.domain_id, waiting, now)
    running = [each for each in domain.running.values() if each.can_decode]
    if back := gate.held_back(domain.domain_id, running, builder.model, now):
        # Whatever else of it came in would only be held back as well.
        builder.hold_back([*back, *(s for s in domain.rotated.values() if is_unreserved(s.contract))])
        heads = [(each, queues.head(each)) for each in waiting]
        hidden |= {each for each, head in heads if head is not None and is_unreserved(head.contract)}
    queues.hidden |= hidden


def pacing(builder: StepBuilder, gate: BandwidthGate) -> Pacing:
    """How the step gives way, so that a reservation beside it is kept."""
    domain_id, now = builder.domain.domain_id, builder.now
    if not gate.is_reserved(domain_id, now):
        return NOT_PACED
    decodes = builder.table.sequences(np.sort(builder.chosen_rows))
    return gate.pacing(domain_id, [*decodes, *builder.prefills], builder.shape, builder.model, now)
