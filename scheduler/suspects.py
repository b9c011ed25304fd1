"""Sequences that were in a step when a worker died, and may have been why."""

from __future__ import annotations

from dataclasses import dataclass

from superinfer.scheduler.sequence import SequenceState


@dataclass(frozen=True, slots=True)
class _Suspicion:
    """How far the sequence had come: outputs committed, tokens surely computed."""

    sequence: SequenceState
    outputs: int
    computed: int


class Suspects:
    """Those suspected, until they have another token or end."""

    def __init__(self) -> None:
        self._by_sequence: dict[int, _Suspicion] = {}

    def __bool__(self) -> bool:
        return bool(self._by_sequence)

    def add(self, sequence: SequenceState, computed: int, *, isolates: bool) -> None:
        """Count a death against a sequence that was in a step; one that had come further than at the death before is no
        more suspect than at the first, unless workers die of what they run.
        """
        previous = self._by_sequence.get(sequence.sequence_id)
        if previous is not None and computed > previous.computed and not isolates:
            sequence.domain_deaths = 0
        sequence.domain_deaths += 1
        sequence.is_isolated = isolates or sequence.domain_deaths > 1
        self._by_sequence[sequence.sequence_id] = _Suspicion(sequence, sequence.committed, computed)

    def clear(self) -> None:
        """Who has got a token since its worker died did not kill it."""
        for each in list(self._by_sequence.values()):
            if each.sequence.committed > each.outputs:
                each.sequence.domain_deaths = 0
                each.sequence.is_isolated = False
                del self._by_sequence[each.sequence.sequence_id]

    def forget(self, sequence: SequenceState) -> None:
        """The sequence has ended."""
        self._by_sequence.pop(sequence.sequence_id, None)
