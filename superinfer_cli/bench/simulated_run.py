"""One simulated run: a policy under the load on the target's devices, and what came of every request."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from superinfer.cli.bench.scenario import Fault
from superinfer.cli.bench.simulated_load import SimulatedLoad
from superinfer.cli.bench.target import SimulationTarget
from superinfer.contracts.contract import SLOContract
from superinfer.executor.simulation.fates import SimulatedRequest
from superinfer.executor.simulation.faults import DomainFault, FaultRecord
from superinfer.executor.simulation.loop import Simulation, simulate
from superinfer.profiler.latency_model import LatencyModel
from superinfer.results.attainment import distribution
from superinfer.results.outcome import End, Measurement, Outcome, judge, unloaded_stages_ms
from superinfer.results.summary import PolicyRun
from superinfer.scheduler.policies.base import Policy


def run_simulated(
    policy: str,
    load: SimulatedLoad,
    target: SimulationTarget,
    contracts: Mapping[str, SLOContract],
    faults: Sequence[Fault],
    *,
    seed: int,
    on_progress: Callable[[int, float], None] = lambda done, now: None,
) -> PolicyRun:
    """The load under one policy, by the virtual clock; the same arguments give the same run."""
    result = simulate_load(load, target, contracts, faults, seed=seed, policy=policy, on_progress=on_progress)
    return PolicyRun(
        policy=policy,
        duration_s=result.duration_s,
        outcomes=judge_fates(result, contracts, target.latency_model, target.client_s),
        contracts=dict(contracts),
        faults=[describe_fault(record, result) for record in result.faults],
        extra={"steps": result.steps},
    )


def simulate_load(
    load: SimulatedLoad,
    target: SimulationTarget,
    contracts: Mapping[str, SLOContract],
    faults: Sequence[Fault],
    *,
    seed: int,
    policy: str | Policy,
    on_progress: Callable[[int, float], None] = lambda done, now: None,
) -> Simulation:
    """The load on the target's devices, by a policy's name or by one made beforehand."""
    name, made = (policy, None) if isinstance(policy, str) else (policy.name, policy)
    return simulate(
        load.requests(),
        contracts=list(contracts.values()),
        model=target.latency_model,
        device_model=target.device_model,
        config=msgspec.structs.replace(target.limits, policy=name),
        domains=target.domains,
        sigma=target.sigma,
        drift=target.drift,
        seed=seed,
        overhead_s=target.overhead_s,
        lead_s=target.lead_s,
        block_copy_s=target.block_copy_s,
        kinds=target.kinds,
        copies_s=target.copies_s,
        faults=domain_faults(faults, target, load.sending_s),
        policy=made,
        on_progress=on_progress,
    )


def domain_faults(faults: Sequence[Fault], target: SimulationTarget, sending_s: float) -> list[DomainFault]:
    """A scenario's faults at their times on the target's domains."""
    return [
        DomainFault(
            time_s=fault.at_s if fault.at_s is not None else (fault.at or 0.0) * sending_s,
            domain_id=target.domains[fault.domain].domain_id,
            restart_s=target.restart_s,
        )
        for fault in faults
    ]


def judge_fates(
    result: Simulation, contracts: Mapping[str, SLOContract], model: LatencyModel, client_s: float = 0.0
) -> list[Outcome]:
    """Every simulated request held against its contract, as a client sees it `client_s` later than the scheduler."""
    outcomes = []
    for fate in result.requests:
        contract = contracts[fate.contract_id]
        outcome = judge(_measurement(fate, client_s), contract)
        if outcome.violated:
            # Only a miss is blamed on a stage, and the prediction that this needs is the costly part.
            unloaded = unloaded_stages_ms(model, fate.prompt_tokens, fate.max_tokens)
            outcome = judge(_measurement(fate, client_s), contract, unloaded)
        outcomes.append(outcome)
    return outcomes


def describe_fault(record: FaultRecord, result: Simulation) -> dict[str, Any]:
    """What one fault did, with the keys that a real fault is described by; there is no token to verify here."""
    fault = record.fault
    alive = [result.requests[row] for row in record.open_rows]
    completed = [fate for fate in alive if fate.reason in ("stop", "length")]
    return {
        "kind": "kill",
        "domain_id": fault.domain_id,
        "time_s": fault.time_s,
        "detected_after_ms": None if record.detected_s is None else (record.detected_s - fault.time_s) * 1e3,
        "time_until_up_s": None if record.ready_s is None else record.ready_s - fault.time_s,
        "moved_requests": record.moved_requests,
        "alive_requests": len(alive),
        "longest_gap_ms": max((fate.longest_gap_s for fate in alive), default=0.0) * 1e3,
        "e2e_p99_ms_alive": distribution((fate.finished_s - fate.arrival_s) * 1e3 for fate in completed).p99,
        "lost": sum(reason not in ("stop", "length") for reason in result.requests.reasons),
        "duplicated": 0,
    }


def _measurement(fate: SimulatedRequest, client_s: float) -> Measurement:
    """A fate as results judge it. No sender is late and no token is real: its hash stays empty."""
    return Measurement(
        request_id=fate.request_id,
        service_id=fate.contract_id,
        scheduled_s=fate.arrival_s,
        sent_s=fate.arrival_s,
        first_token_s=None if math.isnan(fate.first_token_s) else fate.first_token_s + client_s,
        finish_s=None if math.isnan(fate.finished_s) else fate.finished_s + client_s,
        prompt_tokens=fate.prompt_tokens,
        output_tokens=fate.output_tokens,
        end=_end(fate),
        longest_gap_ms=fate.longest_gap_s * 1e3,
        stages_ms={
            "queue": fate.stages.queue_s * 1e3,
            "prefill": fate.stages.prefill_s * 1e3,
            "decode": fate.stages.decode_s * 1e3,
            "rotated": fate.stages.rotated_s * 1e3,
            "migration": fate.stages.migration_s * 1e3,
        },
        domains=list(fate.domain_ids),
        error=fate.refusal or fate.error,
    )


def _end(fate: SimulatedRequest) -> End:
    if fate.refusal is not None:
        return "rejected"
    if fate.reason in ("stop", "length"):
        return "completed"
    return "cancelled" if fate.reason == "abort" else "failed"
