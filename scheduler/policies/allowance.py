"""How long a step urgent requests can bear: their own step, and what of their slack may be spent on others."""

from __future__ import annotations

import math
from dataclasses import dataclass

from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.decay import DecayProfile
from superinfer.scheduler.sequence import SequenceState
from superinfer.scheduler.slack import milestones


@dataclass(frozen=True, slots=True)
class Allowance:
    """`even_s`: the step time at which slack lasts for all steps left; `whole_s`: if it were all spent at once."""

    even_s: float = math.inf
    whole_s: float = math.inf

    def burst_s(self, base_s: float, share: float) -> float:
        """The step time at which this share of all the slack is spent at once, on top of a step of `base_s`."""
        return max(self.even_s, base_s + share * max(self.whole_s - base_s, 0.0))

    def __and__(self, other: Allowance) -> Allowance:
        """What both can bear."""
        return Allowance(min(self.even_s, other.even_s), min(self.whole_s, other.whole_s))


@dataclass(frozen=True, slots=True)
class Reserve:
    """Slack that is not spent: `share` of the time left, for urgent requests that have not arrived yet, and a
    margin.
    """

    share: float = 0.0
    margin_s: float = 0.0


def allowance(
    sequence: SequenceState, model: LatencyModel, decay: DecayProfile, now: float, reserve: Reserve
) -> Allowance:
    """What one request can bear, over all its milestones; unlimited for best effort.

    A step may take longer than predicted: what is allowed is what fits even at the model's upper quantile.
    """
    own_s = model.decode_step_s(sequence.computed)
    upper = model.upper_ratio
    even = whole = math.inf
    for milestone in milestones(sequence, model, now):
        usable_s = decay.time_to_zero_ms(milestone.slack_s * 1e3) / 1e3
        spare_s = usable_s - reserve.share * max(milestone.time_left_s, 0.0) - reserve.margin_s
        even = min(even, (own_s + spare_s / milestone.steps_left) / upper)
        whole = min(whole, (own_s + spare_s) / upper)
    return Allowance(even, whole)
