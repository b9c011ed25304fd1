"""One fault domain inside the scheduler: its KV blocks, the sequences it holds, the steps in flight."""

from __future__ import annotations

from dataclasses import dataclass, field

from superinfer.profiler.latency_model import StepShape
from superinfer.scheduler.blocks import BlockPool
from superinfer.scheduler.sequence import SequenceState


@dataclass(slots=True)
class InFlightStep:
    """A step that was planned and not yet observed."""

    step_id: int
    shape: StepShape
    sequences: list[SequenceState]


@dataclass(slots=True, eq=False)
class DomainState:
    """What the scheduler knows of one domain. `running` and `rotated` are keyed by sequence id, in order of entry."""

    domain_id: str
    device_blocks: BlockPool
    host_blocks: BlockPool
    is_up: bool = True
    running: dict[int, SequenceState] = field(default_factory=dict)
    rotated: dict[int, SequenceState] = field(default_factory=dict)
    in_flight: dict[int, InFlightStep] = field(default_factory=dict)
    finished: list[int] = field(default_factory=list)
    next_step_id: int = 0
