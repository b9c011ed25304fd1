"""A simulated device under a virtual clock: the scheduler that serves, with the latency model in the place of the
hardware.

Every figure that comes from here is a simulated one and has to be labelled so.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from superinfer.profiler.latency_model import LatencyModel, StepShape
from superinfer.scheduler.steps import FinishReason, SampledToken, StepPlan, StepResult


@dataclass(slots=True)
class _Held:
    """What the simulated worker remembers of a sequence."""

    max_tokens: int
    prompt_and_known: int
    outputs: int


class SimulatedDevice:
    """Runs step plans in no time and says how long they would have taken.

    Tokens are all 0. A step takes the model's uncorrected time times a log-normal factor with median 1 and the
    sigma given (the residuals of a measured model have one).
    """

    def __init__(self, domain_id: str, model: LatencyModel, *, sigma: float = 0.0, seed: int = 0) -> None:
        self.domain_id = domain_id
        self.model = model
        self.sigma = sigma
        self.now = 0.0
        self._random = random.Random(f"{seed}:{domain_id}")
        self._held: dict[int, _Held] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        """The result of a step that starts at `self.now`."""
        for sequence_id in plan.finished:
            self._held.pop(sequence_id, None)
        for new in plan.new_sequences:
            committed = len(new.token_ids) - new.prompt_length
            self._held[new.sequence_id] = _Held(new.sampling.max_tokens, len(new.token_ids), committed)
        shape = StepShape()
        tokens: list[SampledToken] = []
        for step in plan.sequences:
            held = self._held.get(step.sequence_id)
            if held is None or held.outputs >= held.max_tokens:
                continue
            samples = step.is_decode or step.start + step.count >= held.prompt_and_known
            if step.is_decode:
                shape.add_decode(step.start)
            else:
                shape.add_prefill(step.start, step.count, samples=samples)
            if samples:
                held.outputs += 1
                finish: FinishReason | None = "length" if held.outputs == held.max_tokens else None
                tokens.append(SampledToken(step.sequence_id, held.outputs - 1, 0, finish))
        noise = math.exp(self._random.gauss(0.0, self.sigma)) if self.sigma else 1.0
        duration = self.model.uncorrected_step_s(shape) * noise
        return StepResult(
            domain_id=self.domain_id,
            step_id=plan.step_id,
            started_s=self.now,
            finished_s=self.now + duration,
            tokens=tokens,
        )
