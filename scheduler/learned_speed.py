"""What the steps of each domain have taught of its speed: domains on unequal cores or devices are not equally fast."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from superinfer.profiler.latency_model import LatencyModel, StepShape


@dataclass(frozen=True, slots=True)
class Speed:
    """`correction` and `upper` of one domain; see LatencyModel."""

    correction: float
    upper: float


class LearnedSpeeds:
    """All domains have one latency model, which many parts of the scheduler hold. It speaks for one domain at a time:
    for that whose step is planned or observed, and for all together where a request comes that any of them may run.
    """

    def __init__(self, model: LatencyModel) -> None:
        self._model = model
        self._by_domain: dict[str, Speed] = {}

    def speak_for(self, domain_id: str) -> None:
        """From now on the model predicts for this domain, which begins with what all together have learnt."""
        speed = self._by_domain.get(domain_id)
        if speed is None:
            self.speak_for_all()
            self.keep(domain_id)
        else:
            self._model.correction, self._model.upper = speed.correction, speed.upper

    def speak_for_all(self) -> None:
        """From now on the model predicts for the mean of the domains that have been asked for a step."""
        if self._by_domain:
            speeds = self._by_domain.values()
            self._model.correction = fmean(speed.correction for speed in speeds)
            self._model.upper = fmean(speed.upper for speed in speeds)

    def learn(self, domain_id: str, shape: StepShape, duration_s: float) -> None:
        """What a step of this domain took."""
        self.speak_for(domain_id)
        self._model.observe(shape, duration_s)
        self.keep(domain_id)

    def keep(self, domain_id: str) -> None:
        """What the model has learnt while it spoke for this domain is the domain's own."""
        self._by_domain[domain_id] = Speed(self._model.correction, self._model.upper)
