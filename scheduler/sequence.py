"""A request inside the scheduler: what is computed, what it holds, what it was promised, where its time went."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from superinfer.contracts.contract import SLOContract
from superinfer.scheduler.outputs import StageTimes
from superinfer.scheduler.request import Request

if TYPE_CHECKING:
    from superinfer.scheduler.domain import DomainState


class Status(enum.Enum):
    """Where a sequence is."""

    WAITING = "waiting"
    RUNNING = "running"
    ROTATED = "rotated"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class SequenceState:
    """One request's state. Counters include steps that are planned and still in flight; `outputs` are committed tokens.

    `prefill_target` is the number of tokens to prefill before the next one is sampled: the prompt, and after a move the
    committed outputs as well.
    """

    sequence_id: int
    request: Request
    contract: SLOContract
    deadline_s: float = math.inf
    ttft_deadline_s: float = math.inf
    tpot_s: float = math.inf
    expected_outputs: int = 0
    status: Status = Status.WAITING
    domain: DomainState | None = None
    outputs: list[int] = field(default_factory=list)
    computed: int = 0
    planned_outputs: int = 0
    prefill_target: int = 0
    blocks: list[int] = field(default_factory=list)
    host_blocks: list[int] = field(default_factory=list)
    domain_ids: list[str] = field(default_factory=list)
    domain_deaths: int = 0
    in_flight: int = 0
    known_to_worker: bool = False
    first_token_s: float | None = None
    stages: StageTimes = field(default_factory=StageTimes)
    stage: str = "queue"
    stage_since_s: float = 0.0
    is_lost: bool = False

    def __post_init__(self) -> None:
        request, contract = self.request, self.contract
        self.prefill_target = len(request.prompt_token_ids)
        self.stage_since_s = request.arrival_s
        if contract.deadline_ms is not None:
            self.deadline_s = request.arrival_s + contract.deadline_ms / 1e3
        if contract.ttft_deadline_ms is not None:
            self.ttft_deadline_s = request.arrival_s + contract.ttft_deadline_ms / 1e3
        if contract.tpot_deadline_ms is not None:
            self.tpot_s = contract.tpot_deadline_ms / 1e3

    @property
    def arrival_s(self) -> float:
        """When the request was (or should have been) sent."""
        return self.request.arrival_s

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt_token_ids)

    @property
    def prefill_left(self) -> int:
        """Tokens still to be prefilled before the next token can be sampled."""
        return max(self.prefill_target - self.computed, 0)

    @property
    def can_decode(self) -> bool:
        """True where the next thing to do is a decode."""
        return self.computed >= self.prefill_target and self.planned_outputs < self.request.sampling.max_tokens

    @property
    def is_done_planning(self) -> bool:
        """True where every token is planned and only results are awaited."""
        return self.planned_outputs >= self.request.sampling.max_tokens

    @property
    def outputs_left(self) -> int:
        """Output tokens expected that are not planned yet; at least one while the sequence lives."""
        return max(min(self.expected_outputs, self.request.sampling.max_tokens) - self.planned_outputs, 1)

    def enter_stage(self, stage: str, now: float) -> None:
        """Book the time since the last change to the stage left, and enter another."""
        if stage == self.stage:
            return
        spent = getattr(self.stages, f"{self.stage}_s") + max(now - self.stage_since_s, 0.0)
        setattr(self.stages, f"{self.stage}_s", spent)
        self.stage, self.stage_since_s = stage, now

    def closed_stages(self, now: float) -> StageTimes:
        """The stage times with the current stage's share up to now."""
        self.enter_stage("closed", now)
        return self.stages

    def restart(self) -> None:
        """Forget everything on the device; committed outputs are prefilled again with the prompt."""
        self.computed = 0
        self.planned_outputs = len(self.outputs)
        self.prefill_target = self.prompt_length + len(self.outputs)
        self.blocks = []
        self.host_blocks = []
        self.in_flight = 0
        self.known_to_worker = False
        self.domain = None
        self.status = Status.WAITING

    def met(self, now: float) -> bool | None:
        """Whether a request that completes now holds every bounded milestone; None for best effort."""
        if self.contract.is_best_effort:
            return None
        if now > self.deadline_s:
            return False
        if self.first_token_s is None or self.first_token_s > self.ttft_deadline_s:
            return False
        gaps = len(self.outputs) - 1
        return gaps < 1 or (now - self.first_token_s) / gaps <= self.tpot_s
