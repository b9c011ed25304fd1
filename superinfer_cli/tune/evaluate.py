"""How good a setting of the slack policy is on a scenario: simulated runs over several seeds, one score each."""

from __future__ import annotations

from dataclasses import dataclass

from superinfer.cli.bench.bounds import build_contracts
from superinfer.cli.bench.capacity import offered_to
from superinfer.cli.bench.scenario import Scenario
from superinfer.cli.bench.simulated_load import SimulatedLoad, simulated_load
from superinfer.cli.bench.simulated_run import simulate_load
from superinfer.cli.bench.target import SimulationTarget, with_room_for
from superinfer.contracts.contract import SLOContract
from superinfer.scheduler.decay import DecayProfile
from superinfer.scheduler.policies.planner_config import PlannerConfig
from superinfer.scheduler.policies.slack import SlackPolicy


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
    """A scenario made ready to be simulated: its contracts, its load, the devices."""

    scenario: Scenario
    contracts: dict[str, SLOContract]
    target: SimulationTarget
    rate_rps: float

    def load(self, seed: int) -> SimulatedLoad:
        """The same requests that `superinfer bench` offers with this seed."""
        return simulated_load(self.scenario, seed=seed, rate_rps=self.rate_rps)

    def run(self, settings: Settings, load: SimulatedLoad, seed: int) -> Score:
        """Simulate one seed's requests under the slack policy with these settings."""
        target = with_room_for(self.target, self.scenario.name, load.longest)
        policy = SlackPolicy(target.latency_model.fresh(), decay=settings.decay, planner=settings.planner)
        result = simulate_load(load, target, self.contracts, self.scenario.faults, seed=seed, policy=policy)
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


def prepare(scenario: Scenario, target: SimulationTarget) -> Bench:
    """Contracts from the scenario's scales and the offered rate from its load."""
    offered = offered_to(target, scenario)
    contracts = build_contracts(scenario, target.latency_model)
    return Bench(offered.scenario, contracts, target, offered.rate_rps)
