"""A fast and a slow kind of domain, requests for them, and a virtual clock: shared by the tests of placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from superinfer.contracts.contract import Bound, ResourceConstraints, SLOContract
from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.config import DomainSpec, SchedulerConfig
from superinfer.scheduler.domain_kind import DomainKind
from superinfer.scheduler.request import Request, SamplingParams
from superinfer.scheduler.scheduler import Scheduler
from superinfer.scheduler.steps import SampledToken, StepPlan, StepResult


def model(factor: float = 1.0) -> LatencyModel:
    """A step of some 10 ms and 1 ms a prompt token, times the factor."""
    points = [(1.0, 8e-3 * factor), (8.0, 0.015 * factor), (512.0, 0.519 * factor)]
    return LatencyModel(1e-3 * factor, points, 1e-7 * factor, 1e-5, 1e-8, 1e-5, 1e-4)


def kind(name: str, factor: float, **more: object) -> DomainKind:
    """A kind whose steps take `factor` times those of the fastest."""
    return DomainKind(name, model(factor), **more)  # type: ignore[arg-type]


def contract(name: str, bound_ms: float | None, **terms: object) -> SLOContract:
    """An end-to-end bound, or none."""
    latency = () if bound_ms is None else (Bound(0.99, bound_ms),)
    return SLOContract(service_id=name, latency=latency, **terms)  # type: ignore[arg-type]


def asks_for(**resources: object) -> ResourceConstraints:
    """Resource constraints."""
    return ResourceConstraints(**resources)  # type: ignore[arg-type]


def request(name: str, contract_id: str, arrival_s: float = 0.0, prompt: int = 50, outputs: int = 5) -> Request:
    """50 prompt tokens and 5 output tokens take about 0.1 s alone on the fast kind."""
    return Request(
        request_id=name,
        contract_id=contract_id,
        prompt_token_ids=[1] * prompt,
        sampling=SamplingParams(max_tokens=outputs, ignore_eos=True),
        arrival_s=arrival_s,
    )


def unequal_scheduler(
    contracts: Sequence[SLOContract],
    kinds: Sequence[DomainKind] | None = None,
    domains: Sequence[DomainSpec] = (DomainSpec("slow", 200, kind="slow"), DomainSpec("fast", 200, kind="fast")),
    **config: object,
) -> Scheduler:
    """One fast and one slow domain, three times as slow, unless told otherwise."""
    kinds = kinds or [kind("fast", 1.0), kind("slow", 3.0)]
    return Scheduler(
        domains=list(domains),
        contracts=list(contracts),
        latency_model=kinds[0].latency_model,
        config=SchedulerConfig(**config),  # type: ignore[arg-type]
        kinds=kinds,
    )


def started(plan: StepPlan | None) -> int:
    """How many sequences enter with a plan."""
    return 0 if plan is None else len(plan.new_sequences)


@dataclass
class Clockwork:
    """Runs the plans of a scheduler by the models' own times."""

    scheduler: Scheduler
    now: float = 0.0

    def step(self, domain_id: str) -> StepPlan | None:
        """Plan a step of one domain and observe it at its predicted end; the clock moves on to there."""
        plan = self.scheduler.plan(domain_id, self.now)
        if plan is not None:
            self.now += plan.predicted_s
            self.scheduler.observe(result_of(plan, self.scheduler, self.now), self.now)
        return plan


def result_of(plan: StepPlan, scheduler: Scheduler, now: float) -> StepResult:
    """Each decode and each prefill that is whole has its token."""
    result = StepResult(
        domain_id=plan.domain_id, step_id=plan.step_id, started_s=now - plan.predicted_s, finished_s=now
    )
    running = scheduler.domains[plan.domain_id].running
    for sequence_id in (*plan.decodes, *(chunk.sequence_id for chunk in plan.sequences)):
        sequence = running.get(sequence_id)
        if sequence is None or sequence.prefill_left:
            continue
        index = len(sequence.outputs)
        reason = "length" if index + 1 >= sequence.request.sampling.max_tokens else None
        result.add(SampledToken(sequence_id, index, 0, reason))
    return result
