"""What a policy is: an order of waiting requests, and the composition of one step."""

from __future__ import annotations

from typing import Protocol

from superinfer.scheduler.sequence import SequenceState
from superinfer.scheduler.step_builder import StepBuilder


class Policy(Protocol):
    """Decides what a step holds. One instance serves all domains of a scheduler."""

    name: str

    def waiting_key(self, sequence: SequenceState) -> float:
        """The static key of a waiting sequence within its contract; smallest first."""
        ...

    def compose(self, builder: StepBuilder) -> None:
        """Fill the next step of `builder.domain`."""
        ...

    def on_arrival(self, sequence: SequenceState, now: float) -> None:
        """A request was admitted."""
        ...

    def on_retire(self, contract_id: str) -> None:
        """No new request of this contract will come; some may be in flight."""
        ...

    def on_finish(self, sequence: SequenceState, now: float) -> None:
        """A request ended, however."""
        ...
