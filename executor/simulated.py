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
    """What the simulated worker remembers of a sequence; `known_tokens` include the output tokens."""

    max_tokens: int
    known_tokens: int
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
        result = StepResult(domain_id=self.domain_id, step_id=plan.step_id, started_s=self.now, finished_s=self.now)
        for sequence_id in plan.decodes:
            held = self._held.get(sequence_id)
            if held is None or held.outputs >= held.max_tokens:
                continue
            shape.add_decode(held.known_tokens - 1)
            self._sample(result, sequence_id, held)
        for step in plan.sequences:
            held = self._held.get(step.sequence_id)
            if held is None or held.outputs >= held.max_tokens:
                continue
            samples = step.start + step.count >= held.known_tokens
            shape.add_prefill(step.start, step.count, samples=samples)
            if samples:
                self._sample(result, step.sequence_id, held)
        noise = math.exp(self._random.gauss(0.0, self.sigma)) if self.sigma else 1.0
        result.finished_s += self.model.uncorrected_step_s(shape) * noise
        return result

    @staticmethod
    def _sample(result: StepResult, sequence_id: int, held: _Held) -> None:
        held.outputs += 1
        held.known_tokens += 1
        finish: FinishReason | None = "length" if held.outputs == held.max_tokens else None
        result.add(SampledToken(sequence_id, held.outputs - 1, 0, finish))
