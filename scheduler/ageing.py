"""Best-effort traffic never starves outright: what an old request may claim of the slack that live contracts have.

Until it has gone `after_s` without progress a best-effort request gets what is left over, which may be nothing. From
then on it has a turn every `steps_between_turns` steps: one small piece of work, a token or a short chunk. Turns come
twice as often each time the wait doubles, down to `fewest_steps` between them. In a turn it may prolong the step by a
part of the smallest slack of the live contracts. Since that is always a part of what is left, no number of turns uses
the slack up, and a contract that holds goes on holding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from superinfer.contracts.errors import UsageError


@dataclass(frozen=True, slots=True)
class Ageing:
    """When ageing begins and how far it goes; `slack_part` is the most of the smallest slack that one turn may take."""

    after_s: float = 60.0
    first_steps: int = 64
    fewest_steps: int = 4
    slack_part: float = 0.05

    def __post_init__(self) -> None:
        if not (self.after_s > 0.0 and math.isfinite(self.after_s)):
            raise UsageError(f"ageing after_s {self.after_s!r}: a finite number above 0 is accepted")
        if not 1 <= self.fewest_steps <= self.first_steps:
            raise UsageError(
                f"ageing fewest_steps {self.fewest_steps!r}: from 1 to first_steps {self.first_steps!r} is accepted"
            )
        if not 0.0 < self.slack_part < 1.0:
            raise UsageError(f"ageing slack_part {self.slack_part!r}: between 0 and 1 is accepted")


def steps_between_turns(waited_s: float, ageing: Ageing) -> int | None:
    """Engine steps from one turn to the next after `waited_s` without progress; None before ageing begins."""
    if waited_s < ageing.after_s:
        return None
    doublings = math.floor(math.log2(waited_s / ageing.after_s))
    # Past the bits of first_steps every further halving is 0.
    return max(ageing.first_steps >> min(doublings, ageing.first_steps.bit_length()), ageing.fewest_steps)


def is_turn(waited_s: float, steps_since_turn: int, ageing: Ageing) -> bool:
    """Whether a request that has waited so long has a turn now. `steps_since_turn` counts the domain's steps since the
    last turn of any aged request, so that several share the turns of one.
    """
    steps = steps_between_turns(waited_s, ageing)
    return steps is not None and steps_since_turn >= steps


def claim_s(slack_s: float, ageing: Ageing) -> float:
    """Seconds by which a turn may prolong its step; 0 where nothing is spare.

    `slack_s` is the smallest slack of the live requests with a contract, less what the policy keeps in reserve;
    infinite where none is alive, and then so is the claim.
    """
    return slack_s if slack_s == math.inf else ageing.slack_part * max(slack_s, 0.0)
