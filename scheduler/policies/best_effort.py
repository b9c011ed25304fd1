"""When best-effort work that gets nothing else has a turn, counted for each domain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from superinfer.scheduler.ageing import Ageing, claim_s, is_turn


@dataclass(slots=True)
class _Wait:
    since_s: float
    steps: int = 0


class BestEffortTurns:
    """Remembers since when best effort has been getting nothing but turns, and how many steps ago the last one was."""

    def __init__(self, ageing: Ageing | None = None) -> None:
        self._ageing = ageing or Ageing()
        self._waits: dict[str, _Wait] = {}

    def claim_s(self, domain_id: str, now: float, slack_s: Callable[[], float], *, is_starved: bool) -> float:
        """Seconds by which the step of this domain may be prolonged, 0 for none; to be asked once for each step.

        `is_starved` where there are best-effort requests and none got into the step; `slack_s`, as in
        `superinfer.scheduler.ageing.claim_s`, is only asked for when a turn is due.
        """
        if not is_starved:
            self.served(domain_id)
            return 0.0
        wait = self._waits.setdefault(domain_id, _Wait(now))
        wait.steps += 1
        return claim_s(slack_s(), self._ageing) if is_turn(now - wait.since_s, wait.steps, self._ageing) else 0.0

    def served(self, domain_id: str) -> None:
        """Best effort got its share of a step, or there is none."""
        self._waits.pop(domain_id, None)

    def took(self, domain_id: str) -> None:
        """A turn was used."""
        self._waits[domain_id].steps = 0
