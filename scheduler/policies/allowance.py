"""How long a step urgent requests can bear: their own step, and what of their slack may be spent on others."""

from __future__ import annotations

import math
from dataclasses import dataclass


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
