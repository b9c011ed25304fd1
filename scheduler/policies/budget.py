"""The composition that the rivals share, as in vLLM: running sequences first, then waiting ones, up to the token
budget.

Decodes and unfinished prefills of running sequences go first in the policy's order; then rotated sequences come
back; then waiting ones enter while sequences, tokens and memory allow. When a running sequence needs a block and
none is free, the last one in the policy's order gives way: it is preempted, never an equal or better one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from superinfer.scheduler.sequence import SequenceState, Status
from superinfer.scheduler.step_builder import StepBuilder


class BudgetPolicy(ABC):
    """Token-budget composition around an order given by `rank`."""

    name: str

    @abstractmethod
    def rank(self, sequence: SequenceState) -> tuple[float, ...]:
        """The order of service, smallest first; must not change while a sequence lives."""

    def waiting_key(self, sequence: SequenceState) -> float:
        """Within a contract: by arrival, unless the policy says otherwise."""
        return sequence.arrival_s

    def on_arrival(self, sequence: SequenceState, now: float) -> None:  # noqa: B027
        """Nothing to learn."""

    def on_finish(self, sequence: SequenceState, now: float) -> None:  # noqa: B027
        """Nothing to learn."""

    def next_waiting(self, builder: StepBuilder) -> SequenceState | None:
        """The waiting sequence that enters next: the best of the contracts' heads."""
        return min(builder.queues.heads(), key=self.rank, default=None)

    def compose(self, builder: StepBuilder) -> None:
        """Fill the step up to the token budget."""
        for sequence in sorted(builder.domain.running.values(), key=self.rank):
            if sequence.status is not Status.RUNNING:
                continue
            if sequence.can_decode:
                while not builder.decode(sequence) and builder.tokens_left > 0:
                    if not self._make_way(builder, sequence):
                        break
            elif sequence.prefill_left:
                builder.prefill(sequence, builder.tokens_left)
        if builder.has_preempted:
            return
        for sequence in sorted(builder.domain.rotated.values(), key=self.rank):
            if builder.tokens_left < 1 or not builder.rotate_in(sequence):
                return
            if sequence.can_decode:
                builder.decode(sequence)
            else:
                builder.prefill(sequence, builder.tokens_left)
        while builder.tokens_left > 0 and builder.has_room:
            waiting = self.next_waiting(builder)
            if waiting is None or builder.prefill(waiting, builder.tokens_left) == 0:
                return
            self.entered(waiting)

    def entered(self, sequence: SequenceState) -> None:  # noqa: B027
        """A waiting sequence went into a step."""

    def _make_way(self, builder: StepBuilder, sequence: SequenceState) -> bool:
        victims = [s for s in builder.domain.running.values() if not builder.is_planned(s)]
        if not victims:
            return False
        victim = max(victims, key=self.rank)
        if victim is sequence or self.rank(victim) <= self.rank(sequence):
            builder.preempt(sequence)
            return False
        return builder.preempt(victim)
