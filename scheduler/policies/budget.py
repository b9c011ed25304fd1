"""The composition that the rivals share, as in vLLM: running sequences first, then waiting ones, up to the token
budget.

Decodes and unfinished prefills of running sequences go first in the policy's order; then rotated sequences come
back; then waiting ones enter while sequences, tokens and memory allow. When a running sequence needs a block and
none is free, the last one in the policy's order gives way: it is preempted, never an equal or better one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from superinfer.scheduler.columns import IntArray
from superinfer.scheduler.sequence import SequenceState, Status
from superinfer.scheduler.step_builder import StepBuilder


class BudgetPolicy(ABC):
    """Token-budget composition around an order given by `rank`."""

    name: str

    @abstractmethod
    def rank(self, sequence: SequenceState, now: float) -> tuple[float, ...]:
        """The order of service at this moment, smallest first.

        Among the waiting sequences of one contract it has to agree with `waiting_key`, which never changes.
        """

    def waiting_key(self, sequence: SequenceState) -> float:
        """Within a contract: by arrival, unless the policy says otherwise."""
        return sequence.arrival_s

    def on_arrival(self, sequence: SequenceState, now: float) -> None:  # noqa: B027
        """Nothing to learn."""

    def on_retire(self, contract_id: str) -> None:  # noqa: B027
        """Nothing to forget."""

    def on_finish(self, sequence: SequenceState, now: float) -> None:  # noqa: B027
        """Nothing to learn."""

    def next_waiting(self, builder: StepBuilder) -> SequenceState | None:
        """The waiting sequence that enters next: the best of the contracts' heads."""
        return min(builder.queues.heads(), key=lambda s: self.rank(s, builder.now), default=None)

    def compose(self, builder: StepBuilder) -> None:
        """Fill the step up to the token budget."""
        self.serve_running(builder)
        if not builder.has_preempted:
            self.bring_in(builder)

    def serve_running(self, builder: StepBuilder) -> None:
        """Decodes and unfinished prefills of the sequences that run and have no work in the step yet."""
        rows = self.running_rows(builder)
        position = builder.decode_while_room(rows)
        while position < len(rows):
            sequence = builder.owner(rows[position])
            if sequence.can_decode:
                while not builder.decode(sequence) and builder.tokens_left > 0:
                    if not self._make_way(builder, sequence):
                        break
            elif sequence.prefill_left:
                builder.prefill(sequence, builder.tokens_left)
            position = builder.decode_while_room(rows, position + 1)

    def bring_in(self, builder: StepBuilder) -> None:
        """Rotated sequences come back, then waiting ones enter, until the first that does not fit."""
        rotated = self.ranked(builder, builder.domain.rotated) if builder.tokens_left > 0 else []
        for sequence in rotated:
            if builder.tokens_left < 1 or not self.admit(builder, sequence, builder.tokens_left):
                return
        while builder.tokens_left > 0 and builder.has_room:
            waiting = self.next_waiting(builder)
            if waiting is None or not self.admit(builder, waiting, builder.tokens_left):
                return

    def admit(self, builder: StepBuilder, sequence: SequenceState, tokens: int) -> bool:
        """Put a rotated or waiting sequence to work in this step with at most `tokens` tokens; False if it cannot."""
        if sequence.status is Status.WAITING:
            return builder.prefill(sequence, tokens) > 0
        if not builder.rotate_in(sequence):
            return False
        if not builder.decode(sequence):
            builder.prefill(sequence, tokens)
        return True

    def ranked(self, builder: StepBuilder, members: dict[int, SequenceState]) -> list[SequenceState]:
        """Sequences of the domain in order of service."""
        return sorted(members.values(), key=lambda s: self.rank(s, builder.now))

    def running_rows(self, builder: StepBuilder) -> IntArray:
        """The rows of the running sequences in order of service.

        This one is for ranks by which running sequences keep their order, however time passes and work proceeds.
        """
        return builder.domain.running.in_order(lambda sequence: self.rank(sequence, builder.now))

    def gives_way(self, builder: StepBuilder, sequence: SequenceState) -> SequenceState:
        """Who loses its blocks so that this running sequence can go on: the last in order, which may be itself."""
        candidates = map(builder.owner, reversed(self.running_rows(builder)))
        return next(candidate for candidate in candidates if not builder.is_planned(candidate))

    def _make_way(self, builder: StepBuilder, sequence: SequenceState) -> bool:
        victim = self.gives_way(builder, sequence)
        return builder.preempt(victim) and victim is not sequence
