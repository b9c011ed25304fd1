"""Settings of the slack policy's step planner, and how they are read from `slack_decay_profile.yaml`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from superinfer.contracts.errors import UsageError


@dataclasses.dataclass(frozen=True, slots=True)
class PlannerConfig:
    """What `superinfer tune` searches beside the decay profile.

    `reserve_alpha` scales the reserve for the not-yet-arrived; its constant part is `margin_share` of the time that
    the most urgent contract allows. `loose_share` of the sequences that a domain may run bounds how many less urgent
    requests hold KV at once; `class_ratio` is how many times more time a contract must
    allow to count as less urgent; `idle_step_share` caps a step without urgent work at this share of the most
    urgent contract's initial slack; less urgent decodes, and then one prefill chunk, may each take `burst_share` of
    urgent requests' spare slack at once.
    """

    reserve_alpha: float = 1.2
    margin_share: float = 0.02
    loose_share: float = 0.125
    class_ratio: float = 2.0
    idle_step_share: float = 0.45
    burst_share: float = 0.15

    def loose_limit(self, max_running: int) -> int:
        """Less urgent requests that may hold KV at once, where `max_running` sequences may."""
        return max(round(self.loose_share * max_running), 1)


def planner_from_mapping(section: Mapping[str, Any], source: str) -> PlannerConfig:
    """A PlannerConfig from the `planner` mapping of a file; errors name the key and what is accepted."""
    accepted = {field.name: field for field in dataclasses.fields(PlannerConfig)}
    values: dict[str, Any] = {}
    for key, value in section.items():
        if key not in accepted:
            raise UsageError(f"{source}: unknown key planner.{key}; accepted: {', '.join(accepted)}")
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number or value < 0:
            raise UsageError(f"{source}: planner.{key}: {value!r} is not accepted; expected a number >= 0")
        values[key] = float(value)
    return PlannerConfig(**values)
