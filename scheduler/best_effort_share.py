"""What best effort may move of one device beside what is reserved of it, and how a step is spread over the time for it.

The ledger says what is left; what that costs the holders says how much of it they can bear (`interference`). Domains
whose steps are best effort alone share it evenly.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from superinfer.profiler.latency_model import LatencyModel, StepShape
from superinfer.scheduler.config import DomainSpec
from superinfer.scheduler.domain import InFlightStep, Pacing
from superinfer.scheduler.interference import BEARABLE, HeldStep, Interference
from superinfer.scheduler.ledger import BandwidthLedger
from superinfer.scheduler.steps import StepResult

_AN_INSTANT_S = 1e-3

SHARES_S = 1.0
"""A domain counts among those that share the rest while it has a step of best effort in flight, and so long after it
was planned.
"""

MOST_PACED_S = 1.0
"""The longest that a step is spread where reservations leave nothing at all, or for what it costs a holder: nobody can
break in on it.
"""


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

    def pacing(
        self, spec: DomainSpec, shape: StepShape, model: LatencyModel, holding: Collection[str], now: float
    ) -> Pacing:
        """How a step of best effort gives way to the domains that hold bandwidth: it reads the weights and its context
        at the rate that it may.
        """
        domain_id, step_s = spec.domain_id, model.step_s(shape)
        self._planned_at[domain_id] = now
        gigabytes = moved_gb(spec, shape)
        left_gb = self.rest_gb(domain_id, now, step_s)
        paced_s = 0.0
        if gigabytes > left_gb:
            paced_s = step_s * gigabytes / left_gb if left_gb > 0.0 else MOST_PACED_S
        bearable_s = gigabytes / self._cap_gb_per_s(domain_id, holding, now)
        if bearable_s > step_s:
            paced_s = max(paced_s, min(bearable_s, MOST_PACED_S))
        pacing = Pacing(paced_s, self._interference.pause_s(holding, now), gigabytes, domain_id not in holding)
        self._interference.planned(domain_id, now + pacing.pause_s + max(paced_s, step_s))
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
        if expected_s <= 0.0:
            return
        alone_s = expected_s * math.exp(self._interference.usual(spec.domain_id))
        own_gb_per_s = moved_gb(spec, shape) / alone_s
        bearable = max(BEARABLE, math.log(max(own_gb_per_s, reserved_gb_per_s) / reserved_gb_per_s))
        surprise = math.log(result.duration_s / expected_s)
        self._interference.held(HeldStep(spec.domain_id, result.started_s, result.finished_s, surprise, bearable))

    def left_gb_per_s(self, domain_id: str, holding: Collection[str], now: float) -> float:
        """The rate at which a domain may move now: its share of what is left, and of what holders can bear."""
        rest_gb_per_s = self.rest_gb(domain_id, now, _AN_INSTANT_S) / _AN_INSTANT_S
        return min(rest_gb_per_s, self._cap_gb_per_s(domain_id, holding, now))

    def rest_gb(self, domain_id: str, now: float, step_s: float) -> float:
        """GB that it may move by the ledger in a step that starts now: its share of what nobody reserved."""
        return self._ledger.best_effort_gb(self._device_id, now, now + step_s) / self._sharing(domain_id, now)

    def _cap_gb_per_s(self, domain_id: str, holding: Collection[str], now: float) -> float:
        return self._interference.cap_gb_per_s(holding) / self._sharing(domain_id, now)

    def _sharing(self, domain_id: str, now: float) -> int:
        """Among how many domains, this one included, the rest is divided."""
        others = (each for each in self._planned_at if each != domain_id)
        return 1 + sum(now - self._planned_at[each] < SHARES_S or self._interference.is_moving(each) for each in others)


def moved_gb(spec: DomainSpec, shape: StepShape) -> float:
    """What a step reads and writes: the weights, and keys and values of its context and of its own tokens."""
    return (spec.weight_bytes + spec.kv_bytes_per_token * (shape.decode_context + shape.tokens)) / 1e9
