"""What best effort may move of one device beside what is reserved of it, and how a step is spread over the time for it.

The ledger says what is left; what that costs the holders says how much of it they can bear (`interference`). Domains
whose steps are best effort alone share it evenly.
"""

from __future__ import annotations

import math

from superinfer.profiler.latency_model import LatencyModel, StepShape
from superinfer.scheduler.config import DomainSpec
from superinfer.scheduler.domain import InFlightStep, Pacing
from superinfer.scheduler.interference import BEARABLE, HeldStep, Interference
from superinfer.scheduler.ledger import BandwidthLedger
from superinfer.scheduler.steps import StepResult

SHARES_S = 1.0
"""A domain whose last step of best effort was planned so long ago no longer counts among those that share the rest."""

MOST_PACED_S = 1.0
"""The longest that a step is spread where reservations leave nothing at all."""


class BestEffortShare:
    """Of one device of a ledger."""

    def __init__(self, ledger: BandwidthLedger, device_id: str, bandwidth_gb_per_s: float) -> None:
        self._ledger = ledger
        self._device_id = device_id
        self._interference = Interference(bandwidth_gb_per_s)
        self._planned_at: dict[str, float] = {}

    def has(self, domain_id: str) -> bool:
        """Whether a domain's last step was best effort alone."""
        return domain_id in self._planned_at

    def leave(self, domain_id: str) -> None:
        """A domain's next step is more than best effort."""
        self._planned_at.pop(domain_id, None)

    def failed(self, domain_id: str) -> None:
        """A domain died, with what it had in flight."""
        self.leave(domain_id)
        self._interference.failed(domain_id)

    def pacing(self, spec: DomainSpec, shape: StepShape, model: LatencyModel, now: float) -> Pacing:
        """How a step of best effort gives way: it reads the weights and its context at the rate that it may."""
        step_s = model.step_s(shape)
        self._planned_at[spec.domain_id] = now
        gigabytes = moved_gb(spec, shape)
        left_gb = self.bearable_gb(spec.domain_id, now, step_s)
        paced_s = 0.0
        if gigabytes > left_gb:
            paced_s = step_s * gigabytes / left_gb if left_gb > 0.0 else MOST_PACED_S
        pacing = Pacing(paced_s, self._interference.pause_s(now), gigabytes)
        self._interference.planned(spec.domain_id, now + pacing.pause_s + max(paced_s, step_s))
        return pacing

    def moved(self, domain_id: str, step: InFlightStep, result: StepResult) -> None:
        """A step of best effort is over."""
        began_s = result.started_s + step.pacing.pause_s
        self._interference.moved(domain_id, began_s, result.finished_s, step.pacing.moved_gb)

    def held(
        self, spec: DomainSpec, shape: StepShape, result: StepResult, model: LatencyModel, reserved_gb_per_s: float
    ) -> None:
        """A step of a domain that has so much reserved is over. It bears what keeps it at that rate, or at its own."""
        # What computes more than it reads says little of the memory.
        if shape.chunks or not shape.decodes or result.duration_s <= 0.0:
            return
        expected_s = model.uncorrected_step_s(shape)
        alone_s = expected_s * math.exp(self._interference.usual(spec.domain_id))
        own_gb_per_s = moved_gb(spec, shape) / alone_s
        bearable = max(BEARABLE, math.log(max(own_gb_per_s, reserved_gb_per_s) / reserved_gb_per_s))
        surprise = math.log(result.duration_s / expected_s)
        self._interference.held(HeldStep(spec.domain_id, result.started_s, result.finished_s, surprise, bearable))

    def bearable_gb(self, domain_id: str, now: float, step_s: float) -> float:
        """GB that best effort of one domain may move in a step that starts now: its share of what holders can bear."""
        cap_gb = step_s * self._interference.cap_gb_per_s
        return min(self.rest_gb(domain_id, now, step_s), cap_gb / self._sharing(domain_id, now))

    def rest_gb(self, domain_id: str, now: float, step_s: float) -> float:
        """Its share of what nobody reserved, in GB."""
        return self._ledger.best_effort_gb(self._device_id, now, now + step_s) / self._sharing(domain_id, now)

    def _sharing(self, domain_id: str, now: float) -> int:
        """Among how many domains, this one included, the rest is divided."""
        others = (at for other, at in self._planned_at.items() if other != domain_id)
        return 1 + sum(now - at < SHARES_S for at in others)


def moved_gb(spec: DomainSpec, shape: StepShape) -> float:
    """What a step reads and writes: the weights, and keys and values of its context and of its own tokens."""
    return (spec.weight_bytes + spec.kv_bytes_per_token * (shape.decode_context + shape.tokens)) / 1e9
