"""Random histories through the real scheduler: steps planned ahead, aborts, deaths, scarce memory; every policy."""

from __future__ import annotations

import random
from collections import deque

import pytest
from checking_device import CheckingDevice, expected_outputs
from hypothesis import given, settings
from hypothesis import strategies as st

from superinfer.contracts.contract import Bound, SLOContract
from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.config import DomainSpec, SchedulerConfig
from superinfer.scheduler.outputs import FinishOutput
from superinfer.scheduler.policies.registry import POLICIES
from superinfer.scheduler.request import Request, SamplingParams
from superinfer.scheduler.scheduler import Scheduler

CONTRACTS = [
    SLOContract(service_id="tight", latency=(Bound(0.99, 800.0),)),
    SLOContract(service_id="loose", latency=(Bound(0.99, 8000.0),)),
    SLOContract(service_id="chat", ttft=(Bound(0.9, 1500.0),), tpot=(Bound(0.9, 200.0),)),
    SLOContract(service_id="best", priority=2.0),
]


def make_model() -> LatencyModel:
    return LatencyModel(
        launch_s=0.002,
        linear_points=[(1, 0.02), (64, 0.08), (256, 0.3)],
        decode_context_s=1e-6,
        decode_s=5e-4,
        prefill_pair_s=1e-7,
        chunk_s=1e-3,
        row_s=1e-3,
    )


def run_history(
    policy: str,
    seed: int,
    *,
    host_blocks: int,
    kv_blocks: int,
    kill: bool,
    shared: bool = False,
    prefixes: int = 0,
    saves: float | None = None,
    strategy: str = "incremental",
) -> int:
    """One random history; checks every token, every block, and that everybody ends. Returns the rotations seen.

    `saves` is how many seconds lie between copies to the host pools, which alone outlive the domains then. Where memory
    is `shared` it outlives the domains, and each reads what is in the other's blocks. With `prefixes`
    every prompt begins as one of so many do, and what they have in common is computed once.
    """
    draw = random.Random(seed)
    config = SchedulerConfig(
        policy=policy,
        max_step_tokens=32,
        max_running=6,
        max_model_len=96,
        block_size=4,
        host_blocks=host_blocks,
        prefix_cache=prefixes > 0,
        save_interval_s=saves,
        save_strategy=strategy,
    )
    beginnings = [[draw.randrange(1, 1000) for _ in range(40)] for _ in range(prefixes)]
    names = ["a", "b"]
    memory: dict[int, list[int]] | None = {} if shared else None
    specs = {
        name: DomainSpec(name, kv_blocks, segment=number if shared else None, device_outlives=saves is None)
        for number, name in enumerate(names)
    }

    def device(name: str) -> CheckingDevice:
        return CheckingDevice(name, kv_blocks, host_blocks, 4, memory=memory, segment=specs[name].segment or 0)

    devices = {name: device(name) for name in names}
    scheduler = Scheduler(
        domains=list(specs.values()),
        contracts=CONTRACTS,
        latency_model=make_model(),
        config=config,
    )
    pending = {name: deque() for name in names}
    requests: dict[str, Request] = {}
    got: dict[str, list[int]] = {}
    ended: dict[str, FinishOutput] = {}
    now, rotations = 0.0, 0

    def take(outputs: list) -> None:
        for output in outputs:
            if isinstance(output, FinishOutput):
                assert output.request_id not in ended
                ended[output.request_id] = output
                continue
            for token in output.each():
                assert token.request_id not in ended
                assert token.output_index == len(got[token.request_id])
                got[token.request_id].append(token.token_id)

    for turn in range(3000):
        now += draw.random() * 0.05
        if turn < 150 and draw.random() < 0.3:
            prompt = [draw.randrange(1, 1000) for _ in range(draw.randint(1, 60))]
            if beginnings:
                beginning = draw.choice(beginnings)[: draw.randint(1, 40)]
                prompt[: len(beginning)] = beginning
            request = Request(
                request_id=f"r{turn}",
                contract_id=draw.choice(CONTRACTS).service_id,
                prompt_token_ids=prompt,
                sampling=SamplingParams(max_tokens=draw.randint(1, 30)),
                arrival_s=now,
            )
            refusal = scheduler.add(request, now)
            if refusal is None:
                requests[request.request_id] = request
                got[request.request_id] = []
        if draw.random() < 0.01 and (live := [r for r in requests if r not in ended]):
            finish = scheduler.abort(draw.choice(live), now)
            assert finish is not None
            take([finish])
        if kill and turn in (60, 110):
            name = draw.choice(names)
            rotations += devices[name].rotations
            if shared and saves is not None:
                devices[name].lose_device_memory()
            pending[name].clear()
            take(scheduler.domain_failed(name, now)[1])
            devices[name] = device(name)
            scheduler.domain_ready(specs[name], now)
        for name in names:
            if scheduler.in_flight(name) < 2 and scheduler.has_work(name) and draw.random() < 0.7:
                plan = scheduler.plan(name, now)
                if plan is not None:
                    assert plan.token_count <= config.max_step_tokens
                    pending[name].append(devices[name].execute(plan))
            if pending[name] and draw.random() < 0.7:
                take(scheduler.observe(pending[name].popleft(), now))
        if turn > 150 and len(ended) == len(requests) and not any(pending.values()):
            break
    assert len(ended) == len(requests), f"{len(requests) - len(ended)} requests never ended"
    for request_id, request in requests.items():
        expected = expected_outputs(request.prompt_token_ids, request.sampling.max_tokens)
        if ended[request_id].reason == "abort":
            assert got[request_id] == expected[: len(got[request_id])]
        else:
            assert got[request_id] == expected
        stages = ended[request_id].stages
        assert min(stages.queue_s, stages.prefill_s, stages.decode_s, stages.rotated_s, stages.migration_s) >= 0.0
    stats = scheduler.stats(now)
    assert (stats.waiting, stats.running, stats.rotated) == (0, 0, 0)
    assert stats.kv_blocks_free == stats.kv_blocks_total == 2 * kv_blocks
    for domain in scheduler.domains.values():
        assert domain.host_blocks.free == host_blocks
    return rotations + sum(device.rotations for device in devices.values())


@pytest.mark.parametrize("policy", POLICIES)
@given(
    seed=st.integers(0, 2**32),
    host_blocks=st.sampled_from([0, 12, 80]),
    kill=st.booleans(),
    shared=st.booleans(),
    prefixes=st.sampled_from([0, 1, 3]),
    saves=st.sampled_from([None, 0.0, 0.1]),
    strategy=st.sampled_from(["incremental", "full"]),
)
@settings(max_examples=25, deadline=None)
def test_every_request_ends_with_the_right_tokens_and_no_block_leaks(
    policy: str,
    seed: int,
    host_blocks: int,
    kill: bool,
    shared: bool,
    prefixes: int,
    saves: float | None,
    strategy: str,
) -> None:
    run_history(
        policy,
        seed,
        host_blocks=host_blocks,
        kv_blocks=40,
        kill=kill,
        shared=shared,
        prefixes=prefixes,
        saves=saves,
        strategy=strategy,
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_scarce_memory_makes_sequences_rotate_through_host_memory(policy: str) -> None:
    assert sum(run_history(policy, seed, host_blocks=80, kv_blocks=30, kill=False) for seed in range(10)) > 0
