"""Contracts come, change and go while requests are in flight."""

from __future__ import annotations

import pytest

from superinfer.contracts.contract import BEST_EFFORT_ID, Bound, SLOContract
from superinfer.contracts.errors import ContractConflictError
from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.config import DomainSpec, SchedulerConfig
from superinfer.scheduler.policies.registry import POLICIES
from superinfer.scheduler.request import Request, SamplingParams
from superinfer.scheduler.scheduler import Scheduler
from superinfer.scheduler.steps import SampledToken, StepResult

MODEL = LatencyModel(
    launch_s=0.001,
    linear_points=[(1, 0.01), (256, 0.1)],
    decode_context_s=0.0,
    decode_s=0.0,
    prefill_pair_s=0.0,
    chunk_s=0.0,
    row_s=0.0,
)


def triage(bound_ms: float, version: int = 1, subs: tuple[str, ...] = ()) -> SLOContract:
    return SLOContract(
        service_id="triage",
        version=version,
        latency=(Bound(0.99, bound_ms),),
        sub_slos={name: SLOContract(service_id=f"triage/{name}", latency=(Bound(0.99, bound_ms),)) for name in subs},
    )


def scheduler_with(*contracts: SLOContract, policy: str = "slack") -> Scheduler:
    return Scheduler(
        domains=[DomainSpec("0", 64)],
        contracts=list(contracts),
        latency_model=MODEL,
        config=SchedulerConfig(policy=policy),
    )


def request(request_id: str, contract_id: str) -> Request:
    return Request(
        request_id=request_id,
        contract_id=contract_id,
        prompt_token_ids=[1, 2, 3],
        sampling=SamplingParams(max_tokens=1, ignore_eos=True),
        arrival_s=0.0,
    )


def finish_at(scheduler: Scheduler, now: float) -> dict[str, bool | None]:
    """Run one step that ends every request; whether each met its contract."""
    plan = scheduler.plan("0", 0.0)
    assert plan is not None
    result = StepResult(domain_id="0", step_id=plan.step_id, started_s=0.0, finished_s=now)
    for step in plan.sequences:
        result.add(SampledToken(step.sequence_id, 0, 7, "length"))
    outputs = scheduler.observe(result, now)
    return {output.request_id: output.met for output in outputs if hasattr(output, "met")}


def test_a_retired_contract_refuses_new_requests_and_finishes_those_in_flight() -> None:
    scheduler = scheduler_with(triage(100, subs=("ask",)))
    assert scheduler.add(request("a", "triage"), 0.0) is None
    assert scheduler.add(request("b", "triage/ask"), 0.0) is None
    scheduler.remove_contract("triage")
    for contract_id in ("triage", "triage/ask"):
        refusal = scheduler.add(request("late", contract_id), 0.0)
        assert refusal is not None
        assert refusal.code == "unknown_contract"
    assert finish_at(scheduler, 0.05) == {"a": True, "b": True}


def test_requests_in_flight_keep_the_version_they_were_admitted_under() -> None:
    scheduler = scheduler_with(triage(100))
    scheduler.add(request("before", "triage"), 0.0)
    scheduler.add_contract(triage(10, version=2))
    scheduler.add(request("after", "triage"), 0.0)
    assert finish_at(scheduler, 0.05) == {"before": True, "after": False}


def test_a_new_version_without_a_sub_task_retires_the_sub_task() -> None:
    scheduler = scheduler_with(triage(100, subs=("ask", "tell")))
    scheduler.add_contract(triage(100, version=2, subs=("tell",)))
    assert scheduler.add(request("a", "triage/tell"), 0.0) is None
    refusal = scheduler.add(request("b", "triage/ask"), 0.0)
    assert refusal is not None
    assert refusal.code == "unknown_contract"


def test_a_new_version_changes_how_urgent_its_requests_are() -> None:
    loose = SLOContract(service_id="report", latency=(Bound(0.99, 10_000.0),))
    scheduler = scheduler_with(loose, triage(20_000))
    scheduler.add(request("report", "report"), 0.0)
    scheduler.add(request("old", "triage"), 0.0)
    scheduler.add_contract(triage(100, version=2))
    scheduler.add(request("new", "triage"), 0.0)
    classes = scheduler.policy._classes  # type: ignore[attr-defined]
    assert classes.contracts(0) == ["triage"]
    assert classes.contracts(1) == ["report"]


def test_nothing_is_kept_back_for_a_retired_contract() -> None:
    loose = SLOContract(service_id="report", latency=(Bound(0.99, 10_000.0),))
    scheduler = scheduler_with(loose, triage(100, subs=("ask",)))
    for contract_id in ("triage", "triage/ask", "report"):
        scheduler.add(request(contract_id, contract_id), 0.0)
    classes = scheduler.policy._classes  # type: ignore[attr-defined]
    assert classes.initial_slack_s(0.0, 1) < 0.1
    scheduler.remove_contract("triage")
    assert classes.contracts(0) == ["triage", "triage/ask", "report"]
    assert classes.initial_slack_s(0.0, 1) > 9.0
    assert finish_at(scheduler, 0.05) == {"triage": True, "triage/ask": True, "report": True}
    scheduler.add_contract(triage(100, version=2))
    assert scheduler.add(request("again", "triage"), 0.1) is None
    assert classes.contracts(1) == ["report"]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_goes_on_while_contracts_come_and_go(policy: str) -> None:
    scheduler = scheduler_with(triage(100, subs=("ask",)), policy=policy)
    scheduler.add(request("a", "triage"), 0.0)
    scheduler.add(request("b", "triage/ask"), 0.0)
    scheduler.add_contract(triage(90, version=2))
    scheduler.remove_contract("triage")
    scheduler.add_contract(triage(80, version=3))
    scheduler.add(request("c", "triage"), 0.0)
    assert finish_at(scheduler, 0.05) == {"a": True, "b": True, "c": True}


def test_the_contract_of_requests_that_name_none_cannot_be_retired() -> None:
    scheduler = scheduler_with()
    with pytest.raises(ContractConflictError, match="best-effort"):
        scheduler.remove_contract(BEST_EFFORT_ID)
    scheduler.remove_contract("nobody")
    assert scheduler.add(request("a", ""), 0.0) is None
