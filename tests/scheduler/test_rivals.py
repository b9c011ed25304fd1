"""What sets each rival apart, on a trace made for it."""

from __future__ import annotations

from collections import Counter

import pytest
from core_like_model import MODEL

from superinfer.contracts.contract import Bound, SLOContract
from superinfer.executor.simulation.loop import Simulation, simulate
from superinfer.scheduler.config import SchedulerConfig
from superinfer.scheduler.policies.budget import BudgetPolicy
from superinfer.scheduler.policies.registry import make_policy
from superinfer.scheduler.policies.rotary import VirtualLagRotation
from superinfer.scheduler.request import Request, SamplingParams
from superinfer.scheduler.step_builder import StepBuilder

CONTRACTS = [
    SLOContract(service_id="chat", ttft=(Bound(0.99, 500.0),), tpot=(Bound(0.99, 200.0),)),
    SLOContract(service_id="batch", latency=(Bound(0.99, 60000.0),)),
]


def request(number: int, arrival_s: float, prompt: int, outputs: int, contract_id: str = "batch") -> Request:
    return Request(
        request_id=str(number),
        contract_id=contract_id,
        prompt_token_ids=[1] * prompt,
        sampling=SamplingParams(max_tokens=outputs, ignore_eos=True),
        arrival_s=arrival_s,
    )


class Watched:
    """A policy that counts how often each sequence is rotated out, and in whose favour: of those that entered in the
    same step, or of those that grew in it.
    """

    def __init__(self, policy: BudgetPolicy) -> None:
        self._policy = policy
        self.rotated_out: Counter[int] = Counter()
        self.displaced: Counter[tuple[int, int]] = Counter()
        self.outgrown: Counter[tuple[int, int]] = Counter()

    def __getattr__(self, name: str) -> object:
        return getattr(self._policy, name)

    def compose(self, builder: StepBuilder) -> None:
        before = set(builder.domain.running)
        self._policy.compose(builder)
        entered = set(builder.domain.running) - before
        grown = {step.sequence_id for step in builder.chunks if step.new_blocks}
        grown |= {sequence_id for sequence_id, _ in builder.decode_blocks}
        for rotation in builder.rotate_out_list:
            self.rotated_out[rotation.sequence_id] += 1
            self.displaced.update((winner, rotation.sequence_id) for winner in entered)
            self.outgrown.update((winner, rotation.sequence_id) for winner in grown - entered)


def run(policy: str, requests: list[Request], *, kv_blocks: int = 4096, **config: int) -> tuple[Simulation, Watched]:
    settings = SchedulerConfig(policy=policy, **config)
    watched = Watched(make_policy(MODEL.fresh(), settings))  # type: ignore[arg-type]
    simulation = simulate(
        requests, contracts=CONTRACTS, model=MODEL, config=settings, kv_blocks=kv_blocks, policy=watched
    )
    assert all(r.output_tokens == r.max_tokens for r in simulation.requests)
    return simulation, watched


def first_token_s(simulation: Simulation, number: int) -> float:
    fate = simulation.requests[number]
    return fate.first_token_s - fate.arrival_s


def test_sjf_serves_the_short_request_that_came_last_first() -> None:
    trace = [request(0, 0.0, 32, 16), request(1, 0.1, 200, 64), request(2, 0.2, 16, 4)]
    fcfs, sjf = (run(policy, trace, max_running=1)[0] for policy in ("fcfs", "sjf"))
    assert fcfs.requests[1].finished_s < fcfs.requests[2].finished_s
    assert sjf.requests[2].finished_s < sjf.requests[1].first_token_s


@pytest.mark.parametrize("policy", ["vlt", "age_rotation"])
def test_rotation_gives_a_late_request_its_first_token_while_long_ones_hold_the_memory(policy: str) -> None:
    long_ones = [request(i, 0.01 * i, 64, 150) for i in range(24)]
    trace = [*long_ones, request(24, 12.0, 64, 20, "chat")]
    memory = {"kv_blocks": 168, "host_blocks": 400}
    fcfs, _ = run("fcfs", trace, **memory)
    rotary, watched = run(policy, trace, **memory)
    assert first_token_s(rotary, 24) < 0.5 * first_token_s(fcfs, 24)
    assert watched.rotated_out


def test_vlt_rotates_nobody_while_the_memory_holds_all() -> None:
    trace = [request(i, 0.01 * i, 64, 50, "chat") for i in range(8)]
    _, watched = run("vlt", trace, kv_blocks=100, host_blocks=400)
    assert not watched.rotated_out


def test_the_quantum_of_vlt_spares_most_rotations(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = [request(i, 0.3 * i, 64, 60, "chat") for i in range(12)]
    _, with_quantum = run("vlt", trace, kv_blocks=30, host_blocks=400)
    monkeypatch.setattr(VirtualLagRotation, "QUANTUM_STEPS", 0)
    _, without = run("vlt", trace, kv_blocks=30, host_blocks=400)
    assert 0 < sum(with_quantum.rotated_out.values()) < 0.5 * sum(without.rotated_out.values())


@pytest.mark.parametrize("policy", ["fcfs", "sjf", "edf", "priority", "round_robin", "slack"])
@pytest.mark.parametrize("contract_id", ["chat", "batch"])
def test_equals_never_preempt_each_other_in_turns(policy: str, contract_id: str) -> None:
    """Four equal requests, of which the memory holds fewer than two at their full length."""
    trace = [request(i, 0.0, 48, 120, contract_id) for i in range(4)]
    _, watched = run(policy, trace, kv_blocks=18, host_blocks=100)
    assert watched.outgrown
    for one, other in watched.outgrown:
        assert (other, one) not in watched.outgrown
    assert not watched.displaced


def test_under_vlt_nobody_takes_the_place_of_one_that_took_its_own() -> None:
    """One block holds a whole sequence, so that whoever leaves leaves for the one that enters."""
    trace = [request(i, 0.0, 48, 120, "chat") for i in range(4)]
    _, watched = run("vlt", trace, kv_blocks=2, host_blocks=8, block_size=256)
    assert watched.displaced
    assert not watched.outgrown
    for one, other in watched.displaced:
        assert (other, one) not in watched.displaced


def test_slack_goes_on_where_equals_hold_all_memory_and_each_lacks_a_block() -> None:
    trace = [request(i, 0.0, 48, 120) for i in range(4)]
    for host_blocks in (0, 100):
        simulation, _ = run("slack", trace, kv_blocks=18, host_blocks=host_blocks)
        assert simulation.output_tokens == 4 * 120


@pytest.mark.parametrize("share_of_pool", [0.5, 0.95])
def test_slack_goes_on_with_a_prefill_that_was_rotated_out(share_of_pool: float) -> None:
    """An urgent request takes the place of a long prompt half-way; nobody else wants the memory afterwards."""
    blocks = 100
    long = request(0, 0.0, int(share_of_pool * blocks * 16) - 20, 4, contract_id="")
    urgent = [request(1 + i, 1.5, 400, 8) for i in range(3)]
    simulation, watched = run("slack", [long, *urgent], kv_blocks=blocks, host_blocks=200, prefix_cache=False)
    assert watched.rotated_out
    assert simulation.output_tokens == 4 + 3 * 8
