"""How long a dead domain's requests stood still: from the death that was noticed to the first step that holds them."""

from __future__ import annotations

from superinfer.executor.messages import Resumed
from superinfer.scheduler.steps import StepPlan, StepResult


class Recovery:
    """Waits for the first step with a request of the dead domain in it; `resumed` is known once it has run.

    A request that a worker has not seen and that has output tokens comes from another domain, or from this one's dead
    worker.
    """

    def __init__(self, dead_domain_id: str, noticed_s: float) -> None:
        self.resumed = Resumed(dead_domain_id, "", noticed_s, 0.0, 0, 0)
        self._step: tuple[str, int] | None = None

    def planned(self, plan: StepPlan) -> None:
        """A plan went to a worker."""
        moved = [new for new in plan.new_sequences if len(new.token_ids) > new.prompt_length]
        if self._step is None and moved:
            self._step = plan.domain_id, plan.step_id
            self.resumed.domain_id = plan.domain_id
            self.resumed.requests = len(moved)
            self.resumed.recomputed_tokens = sum(len(new.token_ids) - 1 - new.computed for new in moved)

    def has_started(self, result: StepResult) -> bool:
        """Whether this is that step's result, which completes `resumed`."""
        if self._step != (result.domain_id, result.step_id):
            return False
        self.resumed.started_s = result.started_s
        return True
