"""Capacity of a mix in requests per second, which `load` is a share of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np

from superinfer.cli.bench.scenario import Scenario, override
from superinfer.cli.bench.target import SimulationTarget
from superinfer.cli.bench.workload import class_order, offered_rate, sample_class, scenario_trace
from superinfer.cli.domain_kinds import kind_of_each_domain
from superinfer.contracts.contract import BEST_EFFORT_ID, SLOContract
from superinfer.executor.config import DomainGroup
from superinfer.executor.simulation.loop import simulate
from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.config import DomainSpec, SchedulerConfig
from superinfer.scheduler.domain_kind import DomainKind
from superinfer.scheduler.request import Request, SamplingParams


class HasLatencyModel(Protocol):
    """A measured profile, or what stands in for one."""

    @property
    def latency_model(self) -> LatencyModel:
        """What a step costs."""
        ...


class HasKinds(Protocol):
    """Domains of several kinds: a simulation's target, or what stands in for one."""

    @property
    def domains(self) -> list[DomainSpec]:
        """Each domain; of its KV blocks there are enough."""
        ...

    @property
    def kinds(self) -> tuple[DomainKind, ...]:
        """The kinds that they name."""
        ...


@dataclass(frozen=True, slots=True)
class UnequalDomains:
    """Domains of several kinds and no more than that."""

    domains: list[DomainSpec]
    kinds: tuple[DomainKind, ...]


REQUESTS_PER_DOMAIN = 1000
"""Enough for the middle half to be within a few per cent of the long-run rate."""
PLENTY_OF_BLOCKS = 1 << 17
"""KV blocks of a domain whose memory is not what limits it."""
POLICY = "fcfs"
"""Capacity is what a plain continuous-batching server reaches, whatever policies are then compared."""


def capacity_rps(
    profile: HasLatencyModel,
    scenario: Scenario,
    domains: int,
    *,
    limits: SchedulerConfig | None = None,
    kv_blocks: int | None = None,
    unequal: HasKinds | None = None,
) -> float:
    """Requests per second of this mix that saturated devices finish, by simulation with the latency model.

    All requests are there from the start; the rate is that of the middle half of the completions, with a full batch.
    What workers on neighbouring cores take from each other is not in the model. `limits` are the scheduler's, its
    defaults if None; `kv_blocks` are those of a domain, as many as a full batch needs if None. Domains that are not
    equal are `unequal`: of them each class of requests has those that its contract permits.
    """
    contracts = [] if unequal is None else _permissions(scenario, unequal.kinds)
    requests = _backlog(scenario, REQUESTS_PER_DOMAIN * domains, contracts)
    longest = max(len(r.prompt_token_ids) + r.sampling.max_tokens for r in requests)
    defaults = limits or SchedulerConfig()
    config = msgspec.structs.replace(
        defaults, policy=POLICY, decay_profile_path=None, max_model_len=max(defaults.max_model_len, longest)
    )
    blocks = kv_blocks or config.max_running * math.ceil(longest / config.block_size)
    run = simulate(
        requests,
        contracts=contracts,
        model=profile.latency_model,
        config=config,
        domains=domains if unequal is None else unequal.domains,
        kv_blocks=blocks,
        kinds=() if unequal is None else unequal.kinds,
    )
    finished = sorted(run.requests.finished_s)
    first, last = len(finished) // 4, 3 * len(finished) // 4
    return (last - first) / (finished[last] - finished[first])


def domains_of(groups: Sequence[DomainGroup], kinds: Sequence[DomainKind]) -> UnequalDomains:
    """The domains of an engine's groups, by the numbers that the engine gives them, with all the memory they need."""
    names = enumerate(kind_of_each_domain(groups))
    specs = [DomainSpec(str(number), PLENTY_OF_BLOCKS, kind=name) for number, name in names]
    return UnequalDomains(specs, tuple(kinds))


@dataclass(frozen=True, slots=True)
class OfferedToTarget:
    """A scenario on the domains of a target: what they can do of it, and what is offered, requests/s."""

    scenario: Scenario
    capacity_rps: float
    rate_rps: float


def offered_to(target: SimulationTarget, scenario: Scenario) -> OfferedToTarget:
    """The scenario's own rate, or its load as a share of what the target's domains can do."""
    domains = len(target.domains)
    if domains != scenario.domains:
        scenario = override(scenario, {"domains": domains})
    kv_blocks = min(spec.kv_blocks for spec in target.domains)
    unequal = target if target.kinds else None
    capacity = capacity_rps(target, scenario, domains, limits=target.limits, kv_blocks=kv_blocks, unequal=unequal)
    return OfferedToTarget(scenario, capacity, offered_rate(scenario, capacity))


def _permissions(scenario: Scenario, kinds: Sequence[DomainKind]) -> list[SLOContract]:
    """Contracts of the classes that bound nothing. Who permits none of the kinds is counted as if it permitted all."""
    return [
        SLOContract(
            service_id=each.service_id,
            precision_loss_allowed=each.precision_loss_allowed or all(kind.loses_precision for kind in kinds),
        )
        for each in scenario.classes
    ]


def _backlog(scenario: Scenario, count: int, contracts: Sequence[SLOContract]) -> list[Request]:
    """Requests of the mix, all at time 0, of the class's contract where there are any; their tokens do not matter to
    the latency model.
    """
    order = class_order([c.share for c in scenario.classes], count, np.random.default_rng(0))
    trace = scenario_trace(scenario)
    shapes = [iter(sample_class(request_class, count, trace)) for request_class in scenario.classes]
    drawn = [(next(shapes[number]), contracts[number].service_id if contracts else BEST_EFFORT_ID) for number in order]
    return [
        Request(
            request_id=str(number),
            contract_id=contract_id,
            prompt_token_ids=[0] * shape.prompt_tokens,
            sampling=SamplingParams(max_tokens=shape.output_tokens, temperature=0.0, ignore_eos=True),
            arrival_s=0.0,
        )
        for number, (shape, contract_id) in enumerate(drawn)
    ]
