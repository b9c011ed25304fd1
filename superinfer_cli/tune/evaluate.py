"""How good a setting of the slack policy is on a scenario: simulated runs over several seeds, one score each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from superinfer.cli.bench.bounds import build_contracts
from superinfer.cli.bench.capacity import capacity_rps
from superinfer.cli.bench.scenario import Scenario
from superinfer.cli.bench.workload import build_workload, encode_by_hash, offered_rate
from superinfer.contracts.contract import SLOContract
from superinfer.executor.simulation.loop import simulate
from superinfer.profiler.latency_model import LatencyModel
from superinfer.profiler.store import ModelProfile
from superinfer.scheduler.config import SchedulerConfig
from superinfer.scheduler.decay import DecayProfile
from superinfer.scheduler.policies.planner_config import PlannerConfig
from superinfer.scheduler.policies.slack import SlackPolicy
from superinfer.scheduler.request import Request

PROMPT_VOCABULARY = 1000


@dataclass(frozen=True, slots=True)
class Settings:
    """What is tuned."""

    decay: DecayProfile
    planner: PlannerConfig


@dataclass(frozen=True, slots=True)
class Score:
    """One simulated run. `attainment` is by service id; `score` is what the search maximises."""

    score: float
    total: float
    attainment: dict[str, float]


@dataclass(frozen=True, slots=True)
class Bench:
    """A scenario made ready to be simulated: its contracts, its load, the device."""

    scenario: Scenario
    contracts: dict[str, SLOContract]
    model: LatencyModel
    rate_rps: float
    sigma: float
    config: SchedulerConfig

    def requests(self, seed: int) -> list[Request]:
        """The same requests that `superinfer bench` offers with this seed, on the virtual clock."""
        planned = build_workload(
            self.scenario, seed=seed, rate_rps=self.rate_rps, encode=encode_by_hash(PROMPT_VOCABULARY)
        )
        return [
            Request(
                request_id=item.request_id,
                contract_id=item.service_id,
                prompt_token_ids=item.prompt_token_ids,
                sampling=item.sampling,
                arrival_s=item.offset_s,
            )
            for item in planned
        ]

    def run(self, settings: Settings, requests: Sequence[Request], seed: int) -> Score:
        """Simulate one seed's requests under the slack policy with these settings."""
        policy = SlackPolicy(self.model.fresh(), decay=settings.decay, planner=settings.planner)
        result = simulate(
            list(requests),
            contracts=list(self.contracts.values()),
            model=self.model,
            config=self.config,
            domains=self.scenario.domains,
            sigma=self.sigma,
            seed=seed,
            policy=policy,
        )
        offered: dict[str, int] = {}
        met: dict[str, int] = {}
        for fate in result.requests:
            service = fate.contract_id
            offered[service] = offered.get(service, 0) + 1
            met[service] = met.get(service, 0) + bool(fate.met)
        bounded = [service for service in offered if not self.contracts[service].is_best_effort]
        attainment = {service: met[service] / offered[service] for service in bounded}
        total = sum(met[s] for s in bounded) / max(sum(offered[s] for s in bounded), 1)
        return Score(total - self._shortfall(attainment), total, attainment)

    def _shortfall(self, attainment: dict[str, float]) -> float:
        """How far contracts stay below the percentile they promise, weighted by priority."""
        weights = {service: self.contracts[service].priority for service in attainment}
        whole = sum(weights.values()) or 1.0
        return sum(
            weights[service] / whole * max(0.0, promised_share(self.contracts[service]) - reached)
            for service, reached in attainment.items()
        )


def promised_share(contract: SLOContract) -> float:
    """The highest percentile that a contract promises."""
    return max(bounds[-1].percentile for bounds in (contract.latency, contract.ttft, contract.tpot) if bounds)


def prepare(scenario: Scenario, profile: ModelProfile, config: SchedulerConfig) -> Bench:
    """Contracts from the scenario's scales and the offered rate from its load."""
    model = profile.latency_model
    contracts = build_contracts(scenario, model)
    rate = offered_rate(scenario, capacity_rps(profile, scenario, scenario.domains))
    return Bench(scenario, contracts, model, rate, model.log_sigma, config)
