"""What the steps of each domain have taught of its speed: domains on unequal cores or devices are not equally fast."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from superinfer.profiler.device_speed import DeviceSpeed
from superinfer.profiler.latency_model import LatencyModel, StepShape
from superinfer.scheduler.columns import FloatArray


class LearnedSpeeds:
    """Domains of a kind have one latency model, which many parts of the scheduler hold. It speaks for one domain at a
    time: for that whose step is planned or observed, and for all of the kind together where a request comes that any of
    them may run. Domains that are not assigned to a model of their own have the one that is given at first.

    `table` has a row for each domain that has been asked for a step, `correction` and `upper` of its model; it is
    replaced when it grows. `outlook` is by domain what its steps say of those that are further ahead than the next.
    """

    def __init__(self, model: LatencyModel) -> None:
        self._model = model
        self._model_of: dict[str, LatencyModel] = {}
        self._by_model: dict[int, tuple[LatencyModel, list[int]]] = {id(model): (model, [])}
        self._rows: dict[str, int] = {}
        self.table: FloatArray = np.zeros((16, 2), np.float64)
        self.outlook: defaultdict[str, DeviceSpeed] = defaultdict(DeviceSpeed)

    def assign(self, domain_id: str, model: LatencyModel) -> None:
        """A domain is of the kind that this model is for."""
        self._model_of[domain_id] = model
        self._by_model.setdefault(id(model), (model, []))

    @property
    def count(self) -> int:
        """Rows of `table` that are some domain's."""
        return len(self._rows)

    def row(self, domain_id: str) -> int:
        """The row of a domain in `table`; −1 until it has been asked for a step."""
        return self._rows.get(domain_id, -1)

    def model_of(self, domain_id: str) -> LatencyModel:
        """The latency model of a domain's kind, whomever it speaks for."""
        return self._of(domain_id)[0]

    def speak_for(self, domain_id: str) -> None:
        """From now on its model predicts for this domain, which begins with what all of its kind have learnt."""
        row = self._rows.get(domain_id)
        model, rows = self._of(domain_id)
        if row is None:
            self._speak_for_mean(model, rows)
            self.keep(domain_id)
        else:
            model.correction, model.upper = self.table[row].tolist()

    def speak_for_all(self) -> None:
        """From now on each model predicts for the mean of its domains that have been asked for a step."""
        for model, rows in self._by_model.values():
            self._speak_for_mean(model, rows)

    def learn(self, domain_id: str, shape: StepShape, duration_s: float) -> None:
        """What a step of this domain took."""
        self.speak_for(domain_id)
        model, _ = self._of(domain_id)
        model.observe(shape, duration_s)
        self.outlook[domain_id].observe(model, shape, duration_s)
        self.keep(domain_id)

    def keep(self, domain_id: str) -> None:
        """What the model has learnt while it spoke for this domain is the domain's own."""
        model, rows = self._of(domain_id)
        row = self._rows.get(domain_id)
        if row is None:
            row = self._rows[domain_id] = len(self._rows)
            rows.append(row)
            if row == len(self.table):
                self.table = np.concatenate((self.table, np.zeros_like(self.table)))
        self.table[row] = model.correction, model.upper

    def _of(self, domain_id: str) -> tuple[LatencyModel, list[int]]:
        return self._by_model[id(self._model_of.get(domain_id, self._model))]

    def _speak_for_mean(self, model: LatencyModel, rows: list[int]) -> None:
        if rows:
            # Summed one after the other, as compiled loops do.
            correction = upper = 0.0
            for row in rows:
                correction += self.table[row, 0]
                upper += self.table[row, 1]
            model.correction, model.upper = float(correction) / len(rows), float(upper) / len(rows)
