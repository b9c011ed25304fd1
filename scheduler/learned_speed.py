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
    """Domains of a kind have one latency model, which many parts of the scheduler hold. It speaks for one domain at a
    time: for that whose step is planned or observed, and for all of the kind together where a request comes that any of
    them may run. Domains that are not assigned to a model of their own have the one that is given at first.
    """

    def __init__(self, model: LatencyModel) -> None:
        self._model = model
        self._model_of: dict[str, LatencyModel] = {}
        self._by_model: dict[int, tuple[LatencyModel, dict[str, Speed]]] = {id(model): (model, {})}

    def assign(self, domain_id: str, model: LatencyModel) -> None:
        """A domain is of the kind that this model is for."""
        self._model_of[domain_id] = model
        self._by_model.setdefault(id(model), (model, {}))

    def speak_for(self, domain_id: str) -> None:
        """From now on its model predicts for this domain, which begins with what all of its kind have learnt."""
        model, speeds = self._of(domain_id)
        speed = speeds.get(domain_id)
        if speed is None:
            _speak_for_mean(model, speeds)
            self.keep(domain_id)
        else:
            model.correction, model.upper = speed.correction, speed.upper

    def speak_for_all(self) -> None:
        """From now on each model predicts for the mean of its domains that have been asked for a step."""
        for model, speeds in self._by_model.values():
            _speak_for_mean(model, speeds)

    def learn(self, domain_id: str, shape: StepShape, duration_s: float) -> None:
        """What a step of this domain took."""
        self.speak_for(domain_id)
        model, _ = self._of(domain_id)
        model.observe(shape, duration_s)
        self.keep(domain_id)

    def keep(self, domain_id: str) -> None:
        """What the model has learnt while it spoke for this domain is the domain's own."""
        model, speeds = self._of(domain_id)
        speeds[domain_id] = Speed(model.correction, model.upper)

    def _of(self, domain_id: str) -> tuple[LatencyModel, dict[str, Speed]]:
        return self._by_model[id(self._model_of.get(domain_id, self._model))]


def _speak_for_mean(model: LatencyModel, speeds: dict[str, Speed]) -> None:
    if speeds:
        model.correction = fmean(speed.correction for speed in speeds.values())
        model.upper = fmean(speed.upper for speed in speeds.values())
