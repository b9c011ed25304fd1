"""Goodput: requests per second that held their contract, over the time in which there was one to win.

A run ends when its last request does, and a scheduler that lets lost requests end after all others makes that late: in
overload half of a short run can be work that no contract asks for any more. Goodput is a rate of the time before, until
the last request was met or lost. A benchmark that divides by the whole duration says less wherever a run ends in a
backlog, and the same where it does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from superinfer.results.outcome import Milestone, Outcome

WITHOUT_TOKENS: tuple[Milestone, ...] = ("latency", "ttft")
"""Milestones that pass whether a request gets anything or not."""


def goodput_rps(outcomes: Sequence[Outcome], duration_s: float) -> float:
    """Requests with status "met" per second of `contested_s`; 0 for a run of no time."""
    contested = contested_s(outcomes, duration_s)
    return sum(each.status == "met" for each in outcomes) / contested if contested > 0 else 0.0


def contested_s(outcomes: Sequence[Outcome], duration_s: float) -> float:
    """Time from the run's start, at most all of it, until the last request was met or could not be met any more."""
    return min(max((decided_s(each) for each in outcomes), default=duration_s), duration_s)


def decided_s(outcome: Outcome) -> float:
    """When it was settled whether a request is met: its end, or the first of its bounds that it did not hold. Infinite
    where nothing says when.
    """
    ended_s = math.inf if outcome.finish_s is None else outcome.finish_s
    if outcome.status == "met":
        return ended_s
    exceeded = outcome.violated if outcome.status == "missed" else WITHOUT_TOKENS
    return min([ended_s, *(_due_s(outcome, milestone) for milestone in exceeded)])


def _due_s(outcome: Outcome, milestone: Milestone) -> float:
    """When a bound was reached; infinite without one."""
    if milestone == "tpot":
        if outcome.tpot_deadline_ms is None or outcome.first_token_s is None:
            return math.inf
        return outcome.first_token_s + (outcome.output_tokens - 1) * outcome.tpot_deadline_ms / 1e3
    bound_ms = outcome.deadline_ms if milestone == "latency" else outcome.ttft_deadline_ms
    return math.inf if bound_ms is None else outcome.scheduled_s + bound_ms / 1e3
