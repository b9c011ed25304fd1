"""The slack policy's shortcuts change no decision: step by step the same plans as the policy written plainly."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_slack_policy import PlainSlackPolicy

from superinfer.contracts.contract import Bound, SLOContract
from superinfer.executor.simulated import SimulatedDevice
from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.config import DomainSpec, SchedulerConfig
from superinfer.scheduler.policies.base import Policy
from superinfer.scheduler.policies.registry import make_policy
from superinfer.scheduler.request import Request, SamplingParams
from superinfer.scheduler.scheduler import Scheduler
from superinfer.scheduler.steps import StepPlan

NAMES = ("a", "b")


def make_model() -> LatencyModel:
    return LatencyModel(
        launch_s=0.002,
        linear_points=[(1, 0.02), (64, 0.08), (256, 0.3)],
        decode_context_s=1.3e-6,
        decode_s=5.1e-4,
        prefill_pair_s=1.7e-7,
        chunk_s=1.1e-3,
        row_s=0.9e-3,
    )


def make_contracts(scale: float) -> list[SLOContract]:
    return [
        SLOContract(service_id="tight", latency=(Bound(0.99, 800.0 * scale),), priority=2.0),
        SLOContract(service_id="loose", latency=(Bound(0.99, 8000.0 * scale),)),
        SLOContract(service_id="chat", ttft=(Bound(0.9, 1500.0 * scale),), tpot=(Bound(0.9, 200.0 * scale),)),
        SLOContract(service_id="all", latency=(Bound(0.9, 3e3 * scale),), ttft=(Bound(0.9, 900.0 * scale),)),
        SLOContract(service_id="best"),
    ]


class Replica:
    """A scheduler with its devices, fed the same events as its twin."""

    def __init__(self, seed: int, scale: float, kv_blocks: int, host_blocks: int, *, plain: bool) -> None:
        draw = random.Random(f"config {seed}")
        config = SchedulerConfig(
            max_step_tokens=draw.choice([16, 64, 256]),
            max_running=draw.choice([3, 8, 32]),
            max_model_len=128,
            block_size=4,
            host_blocks=host_blocks,
        )
        model = make_model()
        policy: Policy = PlainSlackPolicy(model) if plain else make_policy(model, config)
        self.scheduler = Scheduler(
            domains=[DomainSpec(name, kv_blocks) for name in NAMES],
            contracts=make_contracts(scale),
            latency_model=model,
            config=config,
            policy=policy,
        )
        self.devices = {name: SimulatedDevice(name, make_model(), sigma=0.2, seed=seed) for name in NAMES}
        self.results = {name: deque() for name in NAMES}

    def plan(self, name: str, now: float) -> StepPlan | None:
        if self.scheduler.in_flight(name) > 1 or not self.scheduler.has_work(name):
            return None
        plan = self.scheduler.plan(name, now)
        if plan is not None:
            self.devices[name].now = now
            self.results[name].append(self.devices[name].execute(plan))
        return plan

    def observe(self, name: str, now: float) -> list[object]:
        return self.scheduler.observe(self.results[name].popleft(), now) if self.results[name] else []

    def kill(self, name: str, now: float, kv_blocks: int) -> None:
        self.scheduler.domain_failed(name, now)
        self.results[name].clear()
        self.scheduler.domain_ready(DomainSpec(name, kv_blocks), now)


def run_twins(seed: int, *, scale: float, kv_blocks: int, host_blocks: int, turns: int) -> int:
    """Plans compared; raises where one differs."""
    draw = random.Random(seed)
    twins = [Replica(seed, scale, kv_blocks, host_blocks, plain=plain) for plain in (True, False)]
    now, compared = 0.0, 0
    rate = draw.choice([0.1, 0.4, 0.9])
    for turn in range(turns):
        now += draw.random() * 0.06
        # The first turns always bring somebody, so that no history is empty.
        if draw.random() < (rate if turn >= 3 else 1.0) and turn < turns // 2:
            arrival = {
                "request_id": f"r{turn}",
                "contract_id": draw.choice(["tight", "loose", "chat", "all", "best"]),
                "prompt_token_ids": [1] * draw.randint(1, 60),
                "sampling": SamplingParams(max_tokens=draw.randint(1, 30), ignore_eos=draw.random() < 0.5),
                "arrival_s": now - draw.choice([0.0, 0.0, 0.3]),
            }
            refusals = [twin.scheduler.add(Request(**arrival), now) for twin in twins]
            assert refusals[0] == refusals[1]
        if draw.random() < 0.02:
            gone = f"r{draw.randrange(turn + 1)}"
            assert len({twin.scheduler.abort(gone, now) is None for twin in twins}) == 1
        if draw.random() < 0.01:
            name = draw.choice(NAMES)
            for twin in twins:
                twin.kill(name, now, kv_blocks)
        for name in NAMES:
            plans = [twin.plan(name, now) for twin in twins]
            assert plans[0] == plans[1], f"turn {turn}"
            compared += plans[0] is not None
            if draw.random() < 0.8:
                outputs = [twin.observe(name, now) for twin in twins]
                assert outputs[0] == outputs[1]
    return compared


HISTORIES = {
    "seed": st.integers(0, 2**32),
    "scale": st.sampled_from([0.3, 1.0, 5.0]),
    "kv_blocks": st.sampled_from([30, 60, 400]),
    "host_blocks": st.sampled_from([0, 20, 200]),
}


@given(**HISTORIES)
@settings(max_examples=20, deadline=None)
def test_every_plan_equals_that_of_the_policy_written_plainly(
    seed: int, scale: float, kv_blocks: int, host_blocks: int
) -> None:
    assert run_twins(seed, scale=scale, kv_blocks=kv_blocks, host_blocks=host_blocks, turns=150) > 0


# A thousand together: many short ones for many beginnings, long ones for what builds up.
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("count", "turns"), [(500, 30), (350, 60), (150, 120)])
def test_a_thousand_histories_are_planned_as_the_plain_policy_would(count: int, turns: int) -> None:
    @given(**HISTORIES)
    @settings(max_examples=count, deadline=None)
    def compare(seed: int, scale: float, kv_blocks: int, host_blocks: int) -> None:
        assert run_twins(seed, scale=scale, kv_blocks=kv_blocks, host_blocks=host_blocks, turns=turns) > 0

    compare()
