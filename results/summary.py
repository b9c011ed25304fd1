"""The summary of a bench: one JSON object, schema "superinfer.bench/1"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from superinfer.contracts.contract import SLOContract
from superinfer.results.attainment import attainment, check_bounds, distribution, missed_by_stage
from superinfer.results.calibration import Calibration, calibration_figures
from superinfer.results.goodput import contested_s, goodput_rps
from superinfer.results.outcome import Outcome

SCHEMA = "superinfer.bench/1"


@dataclass(slots=True)
class PolicyRun:
    """What one policy made of the load. `duration_s` runs from the start of the load to the last finish.

    `faults` are records of injected faults, each with at least `time_s`, `kind` and `domain_id`.
    `interrupted` is set where the run ended early: the outcomes then cover the requests that were sent. `calibration`
    says how well requests and steps were predicted, where a journal was kept.
    """

    policy: str
    duration_s: float
    outcomes: list[Outcome]
    contracts: dict[str, SLOContract]
    faults: list[dict[str, Any]] = field(default_factory=list)
    interrupted: bool = False
    extra: dict[str, Any] = field(default_factory=dict)
    calibration: Calibration | None = None


def summarize_contract(contract: SLOContract, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Figures of one contract in one run; attainment is None for a best-effort contract."""
    reached = attainment(outcomes)
    return {
        "offered": len(outcomes),
        "completed": _completed(outcomes),
        "met": reached.met if not contract.is_best_effort else None,
        "attainment": reached.share,
        "attainment_ci95": None if reached.ci95 is None else list(reached.ci95),
        "deadline_ms": contract.deadline_ms,
        "ttft_deadline_ms": contract.ttft_deadline_ms,
        "tpot_deadline_ms": contract.tpot_deadline_ms,
        "e2e_ms": msgspec.structs.asdict(distribution(o.e2e_ms for o in outcomes)),
        "ttft_ms": msgspec.structs.asdict(distribution(o.ttft_ms for o in outcomes)),
        "tpot_ms": msgspec.structs.asdict(distribution(o.tpot_ms for o in outcomes)),
        "missed_by_stage": missed_by_stage(outcomes),
        "bounds": [msgspec.structs.asdict(check) for check in check_bounds(contract, outcomes)],
    }


def served_by(outcomes: Sequence[Outcome], kind_of: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """By kind of domain, how many requests ran there, whole or in part, and how many of them met their contract."""
    ran = [({kind_of[domain] for domain in outcome.domains}, outcome.status == "met") for outcome in outcomes]
    return {
        kind: {
            "requests": sum(kind in kinds for kinds, _ in ran),
            "met": sum(kind in kinds for kinds, met in ran if met),
        }
        for kind in dict.fromkeys(kind_of.values())
    }


def summarize_run(run: PolicyRun, kind_of: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Figures of one policy. Goodput counts status "met" over the time in which requests could be met, throughput is
    over all of the duration; tokens of unfinished requests are not output.

    `kind_of` has the kind of each domain, where domains are of several.
    """
    outcomes = run.outcomes
    reached = attainment(outcomes)
    tokens = sum(o.output_tokens for o in outcomes if o.status in ("met", "missed"))
    by_service: dict[str, list[Outcome]] = {service_id: [] for service_id in run.contracts}
    for outcome in outcomes:
        by_service[outcome.service_id].append(outcome)
    contracts = {
        service_id: summarize_contract(run.contracts[service_id], own) for service_id, own in by_service.items()
    }
    if kind_of:
        for service_id, own in by_service.items():
            contracts[service_id]["served_by"] = served_by(own, kind_of)
    return {
        "policy": run.policy,
        "duration_s": run.duration_s,
        "offered": len(outcomes),
        "completed": _completed(outcomes),
        "failed": len(outcomes) - _completed(outcomes),
        "attainment": reached.share,
        "attainment_ci95": None if reached.ci95 is None else list(reached.ci95),
        "goodput_rps": goodput_rps(outcomes, run.duration_s),
        "contested_s": contested_s(outcomes, run.duration_s),
        "output_tokens_per_s": tokens / run.duration_s if run.duration_s > 0 else 0.0,
        "contracts": contracts,
        "faults": run.faults,
        "interrupted": run.interrupted,
        **({} if run.calibration is None else {"predictions": calibration_figures(run.calibration)}),
        **run.extra,
    }


def summarize(
    runs: Sequence[PolicyRun],
    *,
    scenario: str,
    model: str,
    device: str,
    simulated: bool,
    extra: Mapping[str, Any] | None = None,
    kind_of: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The whole summary, ready for JSON. `extra` adds keys to the fixed ones; `kind_of` is as of `summarize_run`."""
    return {
        "schema": SCHEMA,
        "simulated": simulated,
        "scenario": scenario,
        "model": model,
        "device": device,
        **(extra or {}),
        **({"domain_kinds": dict(kind_of)} if kind_of else {}),
        "interrupted": any(run.interrupted for run in runs),
        "token_agreement": None if simulated else token_agreement(runs),
        "runs": [summarize_run(run, kind_of) for run in runs],
    }


def token_agreement(runs: Sequence[PolicyRun]) -> dict[str, int] | None:
    """Of the requests completed under every policy, how many gave the same tokens; None for one run."""
    if len(runs) < 2:
        return None
    hashes = [{o.request_id: o.token_hash for o in run.outcomes if o.status in ("met", "missed")} for run in runs]
    common = set(hashes[0]).intersection(*hashes[1:])
    same = sum(len({by_id[request_id] for by_id in hashes}) == 1 for request_id in common)
    return {"compared": len(common), "equal": same}


def _completed(outcomes: Sequence[Outcome]) -> int:
    return sum(outcome.status in ("met", "missed") for outcome in outcomes)
