"""Each policy decides differently from fcfs, and slack keeps its promises on a simulated device."""

from __future__ import annotations

import random

import pytest
from core_like_model import MODEL

from superinfer.contracts.contract import Bound, SLOContract
from superinfer.executor.simulation.loop import Simulation, simulate
from superinfer.scheduler.config import SchedulerConfig
from superinfer.scheduler.policies.registry import POLICIES
from superinfer.scheduler.request import Request, SamplingParams

CONTRACTS = [
    SLOContract(service_id="triage", latency=(Bound(0.99, 2400.0),), priority=2.0),
    SLOContract(service_id="report", latency=(Bound(0.99, 21000.0),)),
]


def requests(rate_rps: float, count: int, seed: int) -> list[Request]:
    draw, time, made = random.Random(seed), 0.0, []
    for i in range(count):
        time += draw.expovariate(rate_rps)
        is_triage = draw.random() < 0.7
        made.append(
            Request(
                request_id=str(i),
                contract_id="triage" if is_triage else "report",
                prompt_token_ids=[1] * (draw.randint(24, 64) if is_triage else draw.randint(128, 320)),
                sampling=SamplingParams(max_tokens=12 if is_triage else 48, ignore_eos=True),
                arrival_s=time,
            )
        )
    return made


def run(policy: str, rate_rps: float = 1.4, count: int = 200, seed: int = 1, **config: int) -> Simulation:
    return simulate(
        requests(rate_rps, count, seed),
        contracts=CONTRACTS,
        model=MODEL,
        config=SchedulerConfig(policy=policy, **config),
        sigma=0.05,
        seed=seed,
    )


def attainment(simulation: Simulation, contract_id: str) -> float:
    of = [r for r in simulation.requests if r.contract_id == contract_id]
    return sum(bool(r.met) for r in of) / len(of)


@pytest.mark.parametrize("policy", [name for name in POLICIES if name not in ("fcfs", "age_rotation")])
def test_decisions_differ_from_fcfs(policy: str) -> None:
    """The one that differs only where memory is short has its own trace beside the other rivals' tests."""
    ours, theirs = run(policy, max_running=4), run("fcfs", max_running=4)
    assert ours.requests.last_token_s != theirs.requests.last_token_s


def test_slack_keeps_triage_where_fcfs_loses_a_third_of_it() -> None:
    slack, fcfs = run("slack"), run("fcfs")
    assert attainment(fcfs, "triage") < 0.67
    assert attainment(slack, "triage") > 0.95
    assert attainment(slack, "report") >= attainment(fcfs, "report") - 0.1
    assert slack.output_tokens == fcfs.output_tokens


def test_the_same_seed_gives_the_same_run() -> None:
    assert run("slack").duration_s == run("slack").duration_s


def test_lost_requests_complete_soon_after_those_that_can_make_it() -> None:
    simulation = run("slack", rate_rps=2.5)
    late = [r.finished_s - r.arrival_s for r in simulation.requests if r.contract_id == "triage"]
    assert max(late) < 6 * 2.4


def test_two_domains_serve_twice_the_load() -> None:
    simulation = simulate(
        requests(2.6, 200, 3), contracts=CONTRACTS, model=MODEL, config=SchedulerConfig(), domains=2, sigma=0.05
    )
    assert attainment(simulation, "triage") > 0.95
