"""How slack decays, and what risk follows from it (SPEC S2, S3).

Effective slack obeys ds/dt = −rate(s): the less slack is left, the faster it goes. The rate depends on s alone, so
two solutions never cross, and with G(s) = ∫₀ˢ du / rate(u) the moment t + G(s) at which a waiting request's
effective slack reaches zero is constant while it waits. That moment is the request's *critical time*: a static key
for a moving priority.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from superinfer.contracts.errors import UsageError
from superinfer.contracts.yaml_reader import read_settings

GUIDANCE_TIGHT_K = (0.8, 1.5)
GUIDANCE_LOOSE_K = (1.5, 2.5)
GUIDANCE_TIGHT_BELOW_MS = 200.0
GUIDANCE_LOOSE_ABOVE_MS = 2000.0


@dataclass(frozen=True, slots=True)
class DecayProfile:
    """Piecewise-constant decay: `rates[i]` (ms of slack per ms) holds below `thresholds_ms[i]`, the last rate above
    all.

    `thresholds_ms` ascend; there is one rate more than thresholds. `decay_coefficient` is k per
    `high_risk_threshold_ms` of overrun, so that k keeps its meaning whatever the threshold. `smoothing_window_ms`
    is read and kept but nothing uses it yet: predictions are smoothed by the latency model's own correction.
    """

    thresholds_ms: tuple[float, ...] = (100.0, 200.0)
    rates: tuple[float, ...] = (2.0, 1.0, 1.0)
    high_risk_threshold_ms: float = 50.0
    decay_coefficient: float = 1.2
    smoothing_window_ms: float = 100.0
    _knees_ms: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.rates) != len(self.thresholds_ms) + 1:
            raise UsageError(
                f"decay profile: {len(self.thresholds_ms)} thresholds need {len(self.thresholds_ms) + 1} rates, "
                f"got {len(self.rates)}"
            )
        if any(not (math.isfinite(rate) and rate > 0.0) for rate in self.rates):
            raise UsageError(f"decay profile: rates {list(self.rates)}: each must be a number > 0")
        if any(not math.isfinite(t) or t <= 0.0 for t in self.thresholds_ms) or any(
            low >= high for low, high in zip(self.thresholds_ms, self.thresholds_ms[1:], strict=False)
        ):
            raise UsageError(
                f"decay profile: thresholds_ms {list(self.thresholds_ms)}: each must be > 0 and above the one before"
            )
        for name in ("high_risk_threshold_ms", "decay_coefficient", "smoothing_window_ms"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0.0:
                raise UsageError(f"decay profile: {name} {value}: a number >= 0 is expected")
        knees = [0.0]
        previous = 0.0
        for threshold, rate in zip(self.thresholds_ms, self.rates, strict=False):
            knees.append(knees[-1] + (threshold - previous) / rate)
            previous = threshold
        object.__setattr__(self, "_knees_ms", tuple(knees))

    @property
    def knees_ms(self) -> tuple[float, ...]:
        """`time_to_zero_ms` at zero and at each threshold."""
        return self._knees_ms

    def time_to_zero_ms(self, slack_ms: float) -> float:
        """G(slack): how long effective slack takes to reach zero; negative slack goes on at the lowest rate."""
        if slack_ms <= 0.0:
            return slack_ms / self.rates[0]
        i = bisect.bisect_left(self.thresholds_ms, slack_ms)
        floor = self.thresholds_ms[i - 1] if i else 0.0
        return self._knees_ms[i] + (slack_ms - floor) / self.rates[i]

    def effective_slack_ms(self, time_to_zero_ms: float) -> float:
        """The inverse of `time_to_zero_ms`: effective slack that lasts for that long."""
        if time_to_zero_ms <= 0.0:
            return time_to_zero_ms * self.rates[0]
        i = bisect.bisect_left(self._knees_ms, time_to_zero_ms) - 1
        floor = self.thresholds_ms[i - 1] if i else 0.0
        return floor + (time_to_zero_ms - self._knees_ms[i]) * self.rates[i]

    def log_risk(self, base_priority: float, slack_ms: float) -> float:
        """log(base · e^(k · (threshold − slack) / threshold)) at or below the high-risk threshold, log(base) above.

        In the log domain no k and no slack overflows; comparing logs compares risks.
        """
        log_base = math.log(base_priority)
        overrun = self.high_risk_threshold_ms - slack_ms
        if overrun <= 0.0:
            return log_base
        return log_base + self.decay_coefficient * overrun / max(self.high_risk_threshold_ms, 1.0)

    def to_dict(self) -> dict[str, Any]:
        """The form of `slack_decay_profile.yaml`."""
        return {
            "thresholds_ms": list(self.thresholds_ms),
            "rates": list(self.rates),
            "high_risk_threshold_ms": self.high_risk_threshold_ms,
            "decay_coefficient": self.decay_coefficient,
            "smoothing_window_ms": self.smoothing_window_ms,
        }


def guidance_warning(decay_coefficient: float, bound_ms: float) -> str | None:
    """A warning where k leaves the guidance for this bound: 0.8–1.5 under 200 ms, 1.5–2.5 above 2 s."""
    if bound_ms < GUIDANCE_TIGHT_BELOW_MS:
        low, high = GUIDANCE_TIGHT_K
    elif bound_ms > GUIDANCE_LOOSE_ABOVE_MS:
        low, high = GUIDANCE_LOOSE_K
    else:
        return None
    if low <= decay_coefficient <= high:
        return None
    return (
        f"decay_coefficient {decay_coefficient:g} leaves the guidance {low:g}–{high:g} for a bound of {bound_ms:g} ms"
    )


def load_decay_profile(path: Path) -> tuple[DecayProfile, dict[str, Any]]:
    """Read `slack_decay_profile.yaml`: the profile and the `planner` section beside it (empty if absent)."""
    try:
        document = read_settings(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({error})") from None
    if not isinstance(document, dict):
        raise UsageError(f"{path}: a mapping with the keys of a decay profile is expected")
    planner = document.pop("planner", None) or {}
    document.pop("tuned", None)
    accepted = DecayProfile().to_dict()
    for key, value in document.items():
        if key not in accepted:
            raise UsageError(f"{path}: unknown key {key!r}; accepted: {', '.join(accepted)}, planner")
        is_list = isinstance(accepted[key], list)
        values = value if is_list and isinstance(value, list) else [value]
        if is_list != isinstance(value, list) or not all(
            isinstance(v, (int, float)) and not isinstance(v, bool) for v in values
        ):
            raise UsageError(
                f"{path}: {key}: {value!r} is not accepted; expected {'a list of numbers' if is_list else 'a number'}"
            )
    merged = {**accepted, **document}
    try:
        profile = DecayProfile(
            thresholds_ms=tuple(map(float, merged["thresholds_ms"])),
            rates=tuple(map(float, merged["rates"])),
            high_risk_threshold_ms=float(merged["high_risk_threshold_ms"]),
            decay_coefficient=float(merged["decay_coefficient"]),
            smoothing_window_ms=float(merged["smoothing_window_ms"]),
        )
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    if not isinstance(planner, dict):
        raise UsageError(f"{path}: planner: a mapping is expected")
    return profile, planner
