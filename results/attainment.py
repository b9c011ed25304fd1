"""Attainment and its uncertainty: what share of all offered requests held their contract."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from superinfer.contracts.contract import Bound, SLOContract
from superinfer.results.outcome import Milestone, Outcome

Z95 = 1.959963984540054
"""Two-sided 95 % quantile of the standard normal distribution."""


def wilson_interval(met: int, offered: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval of a proportion (Wilson 1927): sensible at 0, at 1 and for few requests."""
    if not 0 <= met <= offered or offered == 0:
        raise ValueError(f"met {met} of offered {offered}: 0 ≤ met ≤ offered and offered > 0 are needed")
    share = met / offered
    spread = z * z / offered
    centre = share + spread / 2
    half = z * math.sqrt(share * (1 - share) / offered + spread / (4 * offered))
    low, high = (centre - half) / (1 + spread), (centre + half) / (1 + spread)
    return max(0.0, min(low, share)), min(1.0, max(high, share))


class Attainment(msgspec.Struct, frozen=True):
    """`met` of `offered` requests; errors, refusals and cancellations are misses."""

    met: int
    offered: int

    @property
    def share(self) -> float | None:
        """met ÷ offered; None where nothing was offered."""
        return self.met / self.offered if self.offered else None

    @property
    def ci95(self) -> tuple[float, float] | None:
        """Wilson 95 % interval of the share."""
        return wilson_interval(self.met, self.offered) if self.offered else None


def attainment(outcomes: Iterable[Outcome]) -> Attainment:
    """Attainment over all outcomes that a contract binds; best-effort ones do not count either way."""
    bound = [outcome for outcome in outcomes if not outcome.best_effort]
    return Attainment(sum(outcome.status == "met" for outcome in bound), len(bound))


def missed_by_stage(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """How many requests missed, by the stage to blame; refused, cancelled and failed ones by that word.

    The values sum to offered − met.
    """
    missed = (outcome for outcome in outcomes if outcome.status != "met")
    counts = Counter(outcome.missed_stage or outcome.status for outcome in missed)
    return dict(counts.most_common())


class Distribution(msgspec.Struct, frozen=True):
    """Percentiles (linear interpolation), mean and sample standard deviation; all None for no values."""

    p50: float | None
    p95: float | None
    p99: float | None
    mean: float | None
    std: float | None
    max: float | None


def distribution(values: Iterable[float | None]) -> Distribution:
    """Describe the values that are not None."""
    known = np.array([value for value in values if value is not None], dtype=np.float64)
    if known.size == 0:
        return Distribution(None, None, None, None, None, None)
    p50, p95, p99 = (float(value) for value in np.percentile(known, [50, 95, 99]))
    std = float(known.std(ddof=1)) if known.size > 1 else 0.0
    return Distribution(p50, p95, p99, float(known.mean()), std, float(known.max()))


class BoundCheck(msgspec.Struct, frozen=True):
    """One promise and what was kept: `held` when at least `percentile` of all offered stayed within it."""

    milestone: Milestone
    percentile: float
    bound_ms: float
    within: float
    held: bool


def check_bounds(contract: SLOContract, outcomes: Sequence[Outcome]) -> list[BoundCheck]:
    """Check every bound at its own percentile over all offered; requests that did not complete break it."""
    if not outcomes:
        return []
    checks: list[BoundCheck] = []
    milestones: tuple[tuple[Milestone, tuple[Bound, ...]], ...] = (
        ("latency", contract.latency),
        ("ttft", contract.ttft),
        ("tpot", contract.tpot),
    )
    for milestone, bounds in milestones:
        for bound in bounds:
            kept = sum(_within(outcome, milestone, bound.bound_ms) for outcome in outcomes) / len(outcomes)
            checks.append(BoundCheck(milestone, bound.percentile, bound.bound_ms, kept, kept >= bound.percentile))
    return checks


def _within(outcome: Outcome, milestone: Milestone, bound_ms: float) -> bool:
    if outcome.status not in ("met", "missed"):
        return False
    value = {"latency": outcome.e2e_ms, "ttft": outcome.ttft_ms, "tpot": outcome.tpot_ms}[milestone]
    return value is None or value <= bound_ms
