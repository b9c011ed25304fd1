"""Slack and allowance of many sequences within one plan.

The figures are those of `superinfer.scheduler.slack` to the last bit: the same operations in the same order, without
the objects in between, since a plan asks for hundreds of them. Times of prefills, which stay the same while requests
wait, are remembered between plans.
"""

from __future__ import annotations

import math

from superinfer.profiler.latency_model import LatencyModel, StepShape
from superinfer.scheduler.decay import DecayProfile
from superinfer.scheduler.policies.allowance import Allowance, Reserve
from superinfer.scheduler.sequence import SequenceState

REMEMBERED_PREFILLS = 4096


class PrefillTimes:
    """Uncorrected times of lone prefills by (start, count)."""

    def __init__(self, model: LatencyModel) -> None:
        self._model = model
        self._known: dict[tuple[int, int], float] = {}

    def uncorrected_s(self, start: int, count: int) -> float:
        """`count` tokens after `start` cached ones, first token included, by the fitted constants alone."""
        known = self._known.get((start, count))
        if known is None:
            if len(self._known) >= REMEMBERED_PREFILLS:
                self._known.clear()
            shape = StepShape()
            shape.add_prefill(start, count, samples=True)
            known = self._known[start, count] = self._model.uncorrected_step_s(shape)
        return known


class PlanTimes:
    """Slack and allowance at one moment, under the model as it is then."""

    __slots__ = (
        "_context_s",
        "_correction",
        "_decay",
        "_decode_s",
        "_one_token_s",
        "_prefills",
        "_row_s",
        "_upper",
        "now",
    )

    def __init__(self, model: LatencyModel, decay: DecayProfile, prefills: PrefillTimes, now: float) -> None:
        self.now = now
        self._decay = decay
        self._prefills = prefills
        self._correction = model.correction
        self._upper = model.upper_ratio
        self._one_token_s = model.launch_s + model.linear_s(1)
        self._context_s = model.decode_context_s
        self._decode_s = model.decode_s
        self._row_s = model.row_s

    def decode_step_s(self, context: int) -> float:
        """One decode alone."""
        uncorrected_s = self._one_token_s + self._context_s * context + self._decode_s + self._row_s
        return self._correction * uncorrected_s

    def remaining_s(self, sequence: SequenceState) -> float:
        """Predicted time to completion if the sequence had the device to itself."""
        return self._remaining_s(sequence, sequence.outputs_left)

    def _remaining_s(self, sequence: SequenceState, left: int) -> float:
        context = sequence.computed
        prefill_s = 0.0
        if context < sequence.prefill_target:
            prefill_s = self._correction * self._prefills.uncorrected_s(context, sequence.prefill_target - context)
            context = sequence.prefill_target
            left -= 1
            if left < 1:
                return prefill_s
        uncorrected_s = self._one_token_s + self._context_s * (context + left // 2) + self._decode_s + self._row_s
        return prefill_s + left * (self._correction * uncorrected_s)

    def slack_s(self, sequence: SequenceState) -> float:
        """The smallest slack over all milestones; infinite for best effort."""
        slack = math.inf
        if sequence.deadline_s < math.inf:
            slack = sequence.deadline_s - self.now - self.remaining_s(sequence)
        if sequence.ttft_deadline_s < math.inf and sequence.planned_outputs == 0:
            slack = min(slack, sequence.ttft_deadline_s - self.now - self._first_token_s(sequence))
        if sequence.tpot_s < math.inf and sequence.first_token_s is not None:
            due_s = sequence.first_token_s + sequence.planned_outputs * sequence.tpot_s
            slack = min(slack, due_s - self.now - self.decode_step_s(sequence.computed))
        return slack

    def allowance(self, sequence: SequenceState, reserve: Reserve) -> tuple[float, float]:
        """(even_s, whole_s) of what one sequence can bear, over all its milestones; unlimited for best effort.

        A step may take longer than predicted: what is allowed is what fits even at the model's upper quantile.
        """
        own_s = self.decode_step_s(sequence.computed)
        even = whole = math.inf
        if sequence.deadline_s < math.inf:
            left = sequence.outputs_left
            time_left = sequence.deadline_s - self.now
            spare = self._spare_s(time_left - self._remaining_s(sequence, left), time_left, reserve)
            even = (own_s + spare / left) / self._upper
            whole = (own_s + spare) / self._upper
        if sequence.ttft_deadline_s < math.inf and sequence.planned_outputs == 0:
            time_left = sequence.ttft_deadline_s - self.now
            spare = self._spare_s(time_left - self._first_token_s(sequence), time_left, reserve)
            bearable = (own_s + spare) / self._upper
            even, whole = min(even, bearable), min(whole, bearable)
        if sequence.tpot_s < math.inf and sequence.first_token_s is not None:
            time_left = sequence.first_token_s + sequence.planned_outputs * sequence.tpot_s - self.now
            spare = self._spare_s(time_left - own_s, time_left, reserve)
            bearable = (own_s + spare) / self._upper
            even, whole = min(even, bearable), min(whole, bearable)
        return even, whole

    def slacks_s(self, sequences: list[SequenceState]) -> list[float]:
        """`slack_s` of each; the common case, decodes towards a deadline alone, without a call."""
        now, correction, one_token_s = self.now, self._correction, self._one_token_s
        context_s, decode_s, row_s = self._context_s, self._decode_s, self._row_s
        slacks = []
        for s in sequences:
            if s.computed < s.prefill_target or not (s.deadline_s < math.inf == s.ttft_deadline_s == s.tpot_s):
                slacks.append(self.slack_s(s))
                continue
            most, expected = s.request.sampling.max_tokens, s.expected_outputs
            left = (expected if expected < most else most) - s.planned_outputs
            if left < 1:
                left = 1
            uncorrected_s = one_token_s + context_s * (s.computed + left // 2) + decode_s + row_s
            slacks.append(s.deadline_s - now - left * (correction * uncorrected_s))
        return slacks

    def common_allowance(self, sequences: list[SequenceState], reserve: Reserve) -> Allowance:
        """What all of them can bear; the common case, decodes towards a deadline alone, without a call."""
        now, correction, one_token_s = self.now, self._correction, self._one_token_s
        context_s, decode_s, row_s = self._context_s, self._decode_s, self._row_s
        time_to_zero_ms, share, margin_s = self._decay.time_to_zero_ms, reserve.share, reserve.margin_s
        even = whole = even_sum = whole_sum = math.inf
        for s in sequences:
            computed = s.computed
            if computed < s.prefill_target or not (s.deadline_s < math.inf == s.ttft_deadline_s == s.tpot_s):
                its_even, its_whole = self.allowance(s, reserve)
                even, whole = min(even, its_even), min(whole, its_whole)
                continue
            most, expected = s.request.sampling.max_tokens, s.expected_outputs
            left = (expected if expected < most else most) - s.planned_outputs
            if left < 1:
                left = 1
            time_left = s.deadline_s - now
            uncorrected_s = one_token_s + context_s * (computed + left // 2) + decode_s + row_s
            spare = time_to_zero_ms((time_left - left * (correction * uncorrected_s)) * 1e3) / 1e3
            spare = spare - share * (time_left if time_left > 0.0 else 0.0) - margin_s
            own_s = correction * (one_token_s + context_s * computed + decode_s + row_s)
            if own_s + spare / left < even_sum:
                even_sum = own_s + spare / left
            if own_s + spare < whole_sum:
                whole_sum = own_s + spare
        return Allowance(min(even, even_sum / self._upper), min(whole, whole_sum / self._upper))

    def _first_token_s(self, sequence: SequenceState) -> float:
        count = max(sequence.prefill_target - sequence.computed, 1)
        return self._correction * self._prefills.uncorrected_s(sequence.computed, count)

    def _spare_s(self, slack_s: float, time_left_s: float, reserve: Reserve) -> float:
        usable_s = self._decay.time_to_zero_ms(slack_s * 1e3) / 1e3
        return usable_s - reserve.share * (time_left_s if time_left_s > 0.0 else 0.0) - reserve.margin_s
