"""A simulated device under a virtual clock: the scheduler that serves, with the latency model in the place of the
hardware.

Every figure that comes from here is a simulated one and has to be labelled so.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from dataclasses import dataclass, field

from superinfer.contracts.contract import SLOContract
from superinfer.profiler.latency_model import LatencyModel, StepShape
from superinfer.scheduler.config import DomainSpec, SchedulerConfig
from superinfer.scheduler.outputs import FinishOutput, TokenOutput
from superinfer.scheduler.policies.base import Policy
from superinfer.scheduler.request import Request
from superinfer.scheduler.scheduler import Scheduler
from superinfer.scheduler.steps import FinishReason, SampledToken, StepPlan, StepResult


@dataclass(slots=True)
class _Held:
    """What the simulated worker remembers of a sequence."""

    max_tokens: int
    prompt_and_known: int
    outputs: int


class SimulatedDevice:
    """Runs step plans in no time and says how long they would have taken.

    Tokens are all 0. A step takes the model's uncorrected time times a log-normal factor with median 1 and the
    sigma given (the residuals of a measured model have one).
    """

    def __init__(self, domain_id: str, model: LatencyModel, *, sigma: float = 0.0, seed: int = 0) -> None:
        self.domain_id = domain_id
        self.model = model
        self.sigma = sigma
        self.now = 0.0
        self._random = random.Random(f"{seed}:{domain_id}")
        self._held: dict[int, _Held] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        """The result of a step that starts at `self.now`."""
        for sequence_id in plan.finished:
            self._held.pop(sequence_id, None)
        for new in plan.new_sequences:
            committed = len(new.token_ids) - new.prompt_length
            self._held[new.sequence_id] = _Held(new.sampling.max_tokens, len(new.token_ids), committed)
        shape = StepShape()
        tokens: list[SampledToken] = []
        for step in plan.sequences:
            held = self._held.get(step.sequence_id)
            if held is None or held.outputs >= held.max_tokens:
                continue
            samples = step.is_decode or step.start + step.count >= held.prompt_and_known
            if step.is_decode:
                shape.add_decode(step.start)
            else:
                shape.add_prefill(step.start, step.count, samples=samples)
            if samples:
                held.outputs += 1
                finish: FinishReason | None = "length" if held.outputs == held.max_tokens else None
                tokens.append(SampledToken(step.sequence_id, held.outputs - 1, 0, finish))
        noise = math.exp(self._random.gauss(0.0, self.sigma)) if self.sigma else 1.0
        duration = self.model.uncorrected_step_s(shape) * noise
        return StepResult(
            domain_id=self.domain_id,
            step_id=plan.step_id,
            started_s=self.now,
            finished_s=self.now + duration,
            tokens=tokens,
        )


@dataclass(slots=True)
class SimulatedRequest:
    """One request's fate; times in virtual seconds since the start."""

    request: Request
    token_times_s: list[float] = field(default_factory=list)
    finish: FinishOutput | None = None
    finished_s: float = math.inf
    refused: str | None = None


@dataclass(slots=True)
class Simulation:
    """The outcome of one simulated run."""

    requests: list[SimulatedRequest]
    duration_s: float
    steps: int

    @property
    def output_tokens(self) -> int:
        """Tokens produced."""
        return sum(len(r.token_times_s) for r in self.requests)


def simulate(
    requests: list[Request],
    *,
    contracts: list[SLOContract],
    model: LatencyModel,
    config: SchedulerConfig,
    domains: int = 1,
    kv_blocks: int = 4096,
    sigma: float = 0.0,
    seed: int = 0,
    overhead_s: float = 0.0,
    policy: Policy | None = None,
) -> Simulation:
    """Run the requests (with arrival times from 0) through a scheduler on simulated devices.

    A domain plans its next step when the last one ends, as the engine does; `overhead_s` is the gap between steps.
    """
    specs = [DomainSpec(f"domain-{i}", kv_blocks) for i in range(domains)]
    own_model = model.fresh()
    scheduler = Scheduler(domains=specs, contracts=contracts, latency_model=own_model, config=config, policy=policy)
    devices = {s.domain_id: SimulatedDevice(s.domain_id, model, sigma=sigma, seed=seed) for s in specs}
    fates = {r.request_id: SimulatedRequest(r) for r in requests}
    order = itertools.count()
    events: list[tuple[float, int, Request | StepResult]] = [(r.arrival_s, next(order), r) for r in requests]
    heapq.heapify(events)
    now = 0.0
    while events:
        now, _, event = heapq.heappop(events)
        if isinstance(event, Request):
            refusal = scheduler.add(event, now)
            if refusal is not None:
                fates[event.request_id].refused = refusal.message
        else:
            for output in scheduler.observe(event, now):
                fate = fates[output.request_id]
                if isinstance(output, TokenOutput):
                    fate.token_times_s.append(now)
                else:
                    fate.finish, fate.finished_s = output, now
        if events and events[0][0] <= now:
            continue
        for domain_id, device in devices.items():
            if scheduler.in_flight(domain_id) or not scheduler.has_work(domain_id):
                continue
            plan = scheduler.plan(domain_id, now)
            if plan is not None:
                device.now = now + overhead_s
                result = device.execute(plan)
                heapq.heappush(events, (result.finished_s, next(order), result))
    return Simulation(list(fates.values()), now, scheduler.stats(now).steps)
