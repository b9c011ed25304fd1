"""The steps of a real run, from its scheduler's journal."""

from __future__ import annotations

from pathlib import Path

from superinfer.contracts.errors import UsageError
from superinfer.executor.journal import Observed
from superinfer.executor.simulation.hindsight import JournalWalk
from superinfer.profiler.latency_model import LatencyModel
from superinfer.profiler.served_speed import ServedStep
from superinfer.scheduler.domain import InFlightStep


class ServedSteps(JournalWalk):
    """Every step of a journal by domain, in order. Raises UsageError where it is none or cannot be gone through."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.of_domain: dict[str, list[ServedStep]] = {}
        try:
            self.run()
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None
        except (KeyError, ValueError, AssertionError) as error:
            raise UsageError(f"{path}: is damaged: its calls do not follow from each other ({error!r})") from None

    def on_step(self, entry: Observed, step: InFlightStep, model: LatencyModel) -> None:
        """As JournalWalk.on_step."""
        result = entry.result
        served = ServedStep(step.shape, result.started_s, result.duration_s)
        self.of_domain.setdefault(result.domain_id, []).append(served)
