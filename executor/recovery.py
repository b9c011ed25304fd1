"""How long a dead domain's requests stood still: from the death that was noticed to the first step that holds them."""

from __future__ import annotations

from collections.abc import Collection

from superinfer.executor.messages import Resumed
from superinfer.scheduler.steps import StepPlan, StepResult


class Recovery:
    """Waits for the first step with one of the sequences that the dead domain held; `resumed` is known once it has run.

    Of one that had no token yet what is computed again is its prompt, which does not count as recomputed.
    """

    def __init__(self, dead_domain_id: str, noticed_s: float, sequence_ids: Collection[int]) -> None:
        self.resumed = Resumed(dead_domain_id, "", noticed_s, 0.0, 0, 0)
        self._sequence_ids = frozenset(sequence_ids)
        self._step: tuple[str, int] | None = None

    def planned(self, plan: StepPlan) -> None:
        """A plan went to a worker."""
        moved = [new for new in plan.new_sequences if new.sequence_id in self._sequence_ids]
        if self._step is None and moved:
            self._step = plan.domain_id, plan.step_id
            self.resumed.domain_id = plan.domain_id
            self.resumed.requests = len(moved)
            self.resumed.recomputed_tokens = sum(
                len(new.token_ids) - 1 - new.computed for new in moved if len(new.token_ids) > new.prompt_length
            )

    def has_started(self, result: StepResult) -> bool:
        """Whether this is that step's result, which completes `resumed`."""
        if self._step != (result.domain_id, result.step_id):
            return False
        self.resumed.started_s = result.started_s
        return True
