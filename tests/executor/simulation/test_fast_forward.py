"""Steps that are taken together give what they give one by one."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_model import MODEL as SMALL

from superinfer.contracts.contract import Bound, SLOContract
from superinfer.executor.simulation.faults import DomainFault
from superinfer.executor.simulation.loop import Simulation, simulate
from superinfer.scheduler.config import DomainSpec, SchedulerConfig
from superinfer.scheduler.fault_map import HomeAndBackup
from superinfer.scheduler.policies.slack import SlackPolicy
from superinfer.scheduler.request import Request, SamplingParams
from superinfer.scheduler.sequence import SequenceState

MODEL = dataclasses.replace(SMALL, decode_context_s=1e-5)
CONTRACTS = [
    SLOContract(service_id="tight", latency=(Bound(0.99, 2500.0),), ttft=(Bound(0.99, 900.0),)),
    SLOContract(service_id="loose", latency=(Bound(0.99, 20_000.0),), tpot=(Bound(0.9, 300.0),)),
    SLOContract(service_id="free"),
]
Offer = tuple[float, str, int, int]
OFFERS = st.lists(
    st.tuples(st.floats(0, 30), st.sampled_from(["tight", "loose", "free"]), st.integers(1, 90), st.integers(1, 40)),
    min_size=1,
    max_size=12,
)


def run(
    offers: list[Offer],
    policy: str,
    *,
    fast_forward: bool,
    domains: int = 1,
    kv_blocks: int = 300,
    config: SchedulerConfig | None = None,
    **options: object,
) -> Simulation:
    requests = [
        Request(
            request_id=str(number),
            contract_id=contract_id,
            prompt_token_ids=[0] * prompt,
            sampling=SamplingParams(max_tokens=outputs, ignore_eos=True),
            arrival_s=arrival_s,
        )
        for number, (arrival_s, contract_id, prompt, outputs) in enumerate(sorted(offers))
    ]
    return simulate(
        requests,
        contracts=CONTRACTS,
        model=MODEL,
        config=config or SchedulerConfig(policy=policy, host_blocks=50),
        domains=[DomainSpec(str(number), kv_blocks) for number in range(domains)],
        sigma=0.1,
        fast_forward=fast_forward,
        **options,  # type: ignore[arg-type]
    )


def assert_equal(fast: Simulation, slow: Simulation) -> None:
    """To the last bit."""
    assert fast.steps == slow.steps
    assert fast.duration_s == slow.duration_s
    for one, other in zip(fast.requests, slow.requests, strict=True):
        assert repr(one) == repr(other)


@settings(max_examples=40, deadline=None)
@given(
    offers=OFFERS,
    policy=st.sampled_from(["slack", "slack", "fcfs", "edf", "sjf", "round_robin", "vlt"]),
    kv_blocks=st.sampled_from([30, 50, 300]),
    dies_s=st.lists(st.floats(0, 30), max_size=2),
)
def test_one_domain_ends_every_request_at_the_same_time(
    offers: list[Offer], policy: str, kv_blocks: int, dies_s: list[float]
) -> None:
    faults = [DomainFault(time_s, "0", restart_s=1.0) for time_s in dies_s]
    fast, slow = (
        run(offers, policy, fast_forward=each, kv_blocks=kv_blocks, faults=faults, overhead_s=0.002)
        for each in (True, False)
    )
    assert_equal(fast, slow)


CROWDS = st.lists(
    st.tuples(st.floats(0, 6), st.sampled_from(["tight", "loose", "free"]), st.integers(1, 700), st.integers(1, 30)),
    min_size=1,
    max_size=40,
)


@settings(max_examples=30, deadline=None)
@given(
    offers=CROWDS,
    policy=st.sampled_from(["slack", "slack", "slack", "fcfs", "edf", "sjf"]),
    domains=st.sampled_from([1, 3]),
    kv_blocks=st.sampled_from([50, 120]),
    max_running=st.sampled_from([3, 16]),
    host_blocks=st.sampled_from([0, 60]),
    dies_s=st.lists(st.floats(0, 8), max_size=1),
    admission=st.sampled_from(["accept", "refuse"]),
)
def test_so_do_crowds_that_wait_are_prefilled_in_chunks_and_give_way(
    offers: list[Offer],
    policy: str,
    domains: int,
    kv_blocks: int,
    max_running: int,
    host_blocks: int,
    dies_s: list[float],
    admission: str,
) -> None:
    faults = [DomainFault(time_s, "0", restart_s=0.5) for time_s in dies_s]
    config = SchedulerConfig(
        policy=policy,
        max_step_tokens=128,
        max_running=max_running,
        host_blocks=host_blocks,
        admission=admission,  # type: ignore[arg-type]
    )
    fast, slow = (
        run(
            offers,
            policy,
            fast_forward=each,
            domains=domains,
            kv_blocks=kv_blocks,
            faults=faults,
            block_copy_s=1e-4,
            config=config,
        )
        for each in (True, False)
    )
    assert_equal(fast, slow)


@settings(max_examples=10, deadline=None)
@given(offers=OFFERS, policy=st.sampled_from(["slack", "fcfs", "edf"]))
def test_so_do_several_domains_each_of_which_learns_its_own_speed(offers: list[Offer], policy: str) -> None:
    fast, slow = (run(offers, policy, fast_forward=each, domains=3) for each in (True, False))
    assert_equal(fast, slow)


@settings(max_examples=10, deadline=None)
@given(offers=CROWDS, policy=st.sampled_from(["slack", "fcfs"]))
def test_so_do_domains_that_serve_some_contracts_only(offers: list[Offer], policy: str) -> None:
    homes = {"tight": HomeAndBackup(("0",)), "loose": HomeAndBackup(("1", "0")), "free": HomeAndBackup(("1",))}
    config = SchedulerConfig(policy=policy, fault_domains=homes)
    fast, slow = (run(offers, policy, fast_forward=each, domains=2, config=config) for each in (True, False))
    assert_equal(fast, slow)


def test_so_does_a_crowd_larger_than_the_tables_were_made_for() -> None:
    kinds = ["tight", "loose", "free"]
    offers = [(0.001 * number, kinds[number % 3], 20 + number % 50, 2 + number % 7) for number in range(360)]
    config = SchedulerConfig(policy="slack", max_running=256, max_step_tokens=512)
    fast, slow = (
        run(offers, "slack", fast_forward=each, domains=2, kv_blocks=600, config=config) for each in (True, False)
    )
    assert_equal(fast, slow)


def count_made(monkeypatch: pytest.MonkeyPatch, cls: type) -> list[int]:
    """How many objects of a class have been made since, in a list of one."""
    made = [0]
    init = cls.__init__

    def counting(self: object, *arguments: object, **options: object) -> None:
        made[0] += 1
        init(self, *arguments, **options)

    monkeypatch.setattr(cls, "__init__", counting)
    return made


def test_requests_for_which_tables_suffice_have_no_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = ["tight", "loose", "free"]
    offers = [(1.5 * number, kinds[number % 3], 20 + number % 50, 2 + number % 7) for number in range(600)]
    slow = run(offers, "slack", fast_forward=False, domains=2)
    made = count_made(monkeypatch, SequenceState)
    fast = run(offers, "slack", fast_forward=True, domains=2)
    assert_equal(fast, slow)
    assert made[0] < 60


def test_objects_are_made_of_requests_when_a_domain_dies_under_them(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = ["tight", "loose", "free"]
    offers = [(0.7 * number, kinds[number % 3], 20 + number % 50, 2 + number % 30) for number in range(300)]
    times_s = [11.03, 60.31, 97.7, 130.1, 170.9]
    faults = [DomainFault(time_s, str(number % 2), restart_s=3.0) for number, time_s in enumerate(times_s)]
    slow = run(offers, "slack", fast_forward=False, domains=2, faults=faults)
    made = count_made(monkeypatch, SequenceState)
    fast = run(offers, "slack", fast_forward=True, domains=2, faults=faults)
    assert_equal(fast, slow)
    assert [record.moved_requests for record in fast.faults] == [record.moved_requests for record in slow.faults]
    assert sum(record.moved_requests for record in fast.faults) > 0
    assert 0 < made[0] < 150


def test_progress_is_told_at_the_same_times() -> None:
    offers = [(0.5 * number, "free", 5, 1) for number in range(4100)]
    told: dict[bool, list[tuple[int, float]]] = {True: [], False: []}
    for fast_forward, calls in told.items():
        run(
            offers,
            "slack",
            fast_forward=fast_forward,
            on_progress=lambda done, now, calls=calls: calls.append((done, now)),  # type: ignore[misc]
        )
    assert told[True] == told[False]
    assert [done for done, _ in told[True]] == [2000, 4000]


def test_a_long_decode_is_planned_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = 0
    compose = SlackPolicy.compose

    def counting(policy: SlackPolicy, builder: object) -> None:
        nonlocal plans
        plans += 1
        compose(policy, builder)  # type: ignore[arg-type]

    monkeypatch.setattr(SlackPolicy, "compose", counting)
    result = run([(0.0, "free", 30, 500)], "slack", fast_forward=True)
    assert result.output_tokens == 500
    assert plans < 10
