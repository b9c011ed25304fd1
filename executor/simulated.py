"""A simulated device under a virtual clock: the scheduler that serves, with the latency model in the place of the
hardware.

Every figure that comes from here is a simulated one and has to be labelled so.
"""

from __future__ import annotations

import math
import random

import numpy as np

from superinfer.profiler.drift import Drift
from superinfer.profiler.latency_model import LatencyModel, StepShape
from superinfer.scheduler.columns import FloatArray, IntArray
from superinfer.scheduler.kernels import compiled
from superinfer.scheduler.steps import StepPlan, StepResult

NOISE_DRAWN = 256
"""Factors on step times that are drawn at once."""

MAX_TOKENS, KNOWN_TOKENS, OUTPUTS = range(3)
"""Columns of what the device remembers of a sequence; the known tokens include the output tokens."""


@compiled
def run_decodes(held: IntArray, slots: IntArray, sampled: IntArray) -> tuple[int, int, int]:
    """One token for each slot that has not ended. Returns how many that are, the context that they attend to, and how
    many end with it; the positions of those that sample come first in `sampled`, of those that end last.
    """
    count = context = 0
    ended = len(slots)
    for i in range(len(slots)):
        slot = slots[i]
        if held[slot, OUTPUTS] >= held[slot, MAX_TOKENS]:
            continue
        context += held[slot, KNOWN_TOKENS] - 1
        held[slot, KNOWN_TOKENS] += 1
        held[slot, OUTPUTS] += 1
        sampled[0, count] = i
        sampled[1, count] = held[slot, OUTPUTS] - 1
        if held[slot, OUTPUTS] == held[slot, MAX_TOKENS]:
            ended -= 1
            sampled[2, ended] = i
        count += 1
    return count, context, ended


class SimulatedDevice:
    """Runs step plans in no time and says how long they would have taken.

    Tokens are all 0. A step takes the model's uncorrected time times two log-normal factors: the noise of each step, of
    `sigma` and median 1, and that of the device's drift, which goes on while time passes, busy or not. That one's mean
    is 1, as the constants are fitted to what steps take in the long run: a drift makes queues longer, no work.
    """

    def __init__(
        self, domain_id: str, model: LatencyModel, *, sigma: float = 0.0, drift: Drift | None = None, seed: int = 0
    ) -> None:
        self.domain_id = domain_id
        self.model = model
        self.sigma = sigma
        self.drift = drift
        self.now = 0.0
        self._random = random.Random(f"{seed}:{domain_id}")
        self._is_noisy = bool(sigma)
        self._drift_random = random.Random(f"{seed}:{domain_id}:drift")
        self._drifted_s = -math.inf
        self._log_speed = 0.0
        self._noise: FloatArray = np.ones(NOISE_DRAWN, np.float64)
        self._noise_used = NOISE_DRAWN if self._is_noisy else 0
        self._slots: dict[int, int] = {}
        self._held: IntArray = np.zeros((64, 3), np.int64)
        self._free = list(range(64))
        self._decodes: list[int] = []
        self._decode_slots: IntArray = np.empty(0, np.int64)

    def execute(self, plan: StepPlan) -> StepResult:
        """The result of a step that starts at `self.now`."""
        self._forget(plan.finished)
        for new in plan.new_sequences:
            if not self._free:
                self._grow()
            slot = self._slots[new.sequence_id] = self._free.pop()
            known = len(new.token_ids)
            self._held[slot] = new.sampling.max_tokens, known, known - new.prompt_length
        shape = StepShape()
        result = StepResult(domain_id=self.domain_id, step_id=plan.step_id, started_s=self.now, finished_s=self.now)
        if plan.decodes:
            self._decode(plan.decodes, shape, result)
        for step in plan.sequences:
            slot = self._slots.get(step.sequence_id, -1)
            if slot < 0 or self._held[slot, OUTPUTS] >= self._held[slot, MAX_TOKENS]:
                continue
            samples = step.start + step.count >= int(self._held[slot, KNOWN_TOKENS])
            shape.add_prefill(step.start, step.count, samples=samples)
            if samples:
                self._sample([step.sequence_id], np.array([slot]), result)
        noise = self._next_noise() * self._drift_factor()
        result.finished_s += plan.pause_s + max(self.model.uncorrected_step_s(shape) * noise, plan.paced_s)
        return result

    def next_noise(self) -> FloatArray:
        """The factors of each step's own noise on the next NOISE_DRAWN steps, for a loop that keeps its own account of
        them; not to be written to.
        """
        self._draw_noise()
        self._noise_used = NOISE_DRAWN if self._is_noisy else 0
        return self._noise

    def _draw_noise(self) -> None:
        """Have at least one factor to use."""
        if self._noise_used == NOISE_DRAWN:
            gauss, sigma = self._random.gauss, self.sigma
            self._noise[:] = [math.exp(gauss(0.0, sigma)) for _ in range(NOISE_DRAWN)]
            self._noise_used = 0

    def _drift_factor(self) -> float:
        """What the device's speed at `self.now` makes of a step's time."""
        if self.drift is None:
            return 1.0
        sigma = self.drift.sigma
        kept = math.exp((self._drifted_s - self.now) / self.drift.lasts_s)
        self._log_speed = kept * self._log_speed + self._drift_random.gauss(0.0, sigma * math.sqrt(1.0 - kept * kept))
        self._drifted_s = self.now
        return math.exp(self._log_speed - 0.5 * sigma * sigma)

    def _next_noise(self) -> float:
        """The factor of the next step's own noise on its time."""
        if not self._is_noisy:
            return 1.0
        self._draw_noise()
        self._noise_used += 1
        return float(self._noise[self._noise_used - 1])

    def _decode(self, decodes: list[int], shape: StepShape, result: StepResult) -> None:
        if decodes is not self._decodes:
            known = [sequence_id for sequence_id in decodes if sequence_id in self._slots]
            slots = np.array([self._slots[sequence_id] for sequence_id in known], np.int64)
            self._decodes = decodes if len(known) == len(decodes) else known
            self._decode_slots = slots
        count, context = self._sample(self._decodes, self._decode_slots, result)
        shape.tokens += count
        shape.decodes += count
        shape.rows += count
        shape.decode_context += context

    def _sample(self, ids: list[int], slots: IntArray, result: StepResult) -> tuple[int, int]:
        """Report a token for each that has not ended; how many, and the context that they attend to."""
        sampled = np.empty((3, len(slots)), np.int64)
        count, context, ended = run_decodes(self._held, slots, sampled)
        result.sequence_ids += ids if count == len(ids) else [ids[i] for i in sampled[0, :count].tolist()]
        result.output_indices += sampled[1, :count].tolist()
        result.token_ids += [0] * count
        result.ends += [(ids[i], "length") for i in sampled[2, ended:].tolist()]
        return count, context

    def _forget(self, sequence_ids: list[int]) -> None:
        for sequence_id in sequence_ids:
            slot = self._slots.pop(sequence_id, -1)
            if slot >= 0:
                self._free.append(slot)
                self._decodes = []

    def _grow(self) -> None:
        more = len(self._held)
        self._free.extend(range(more, 2 * more))
        self._held = np.concatenate((self._held, np.zeros_like(self._held)))
