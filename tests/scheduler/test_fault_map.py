"""The fault-domain map: reading it, and who serves a contract while domains go and come back."""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superinfer.contracts.contract import Bound, SLOContract
from superinfer.contracts.errors import UsageError
from superinfer.executor.simulated import SimulatedDevice
from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.config import DomainSpec, SchedulerConfig
from superinfer.scheduler.fault_map import DomainAssignment, load_fault_map, parse_fault_map, resolve_fault_map
from superinfer.scheduler.outputs import FinishOutput
from superinfer.scheduler.policies.registry import POLICIES
from superinfer.scheduler.request import Request, SamplingParams
from superinfer.scheduler.scheduler import Scheduler

DOMAINS = ["0", "1", "2"]
CONTRACTS = [
    SLOContract(service_id="risk-scoring", latency=(Bound(0.99, 800.0),)),
    SLOContract(service_id="report-gen", latency=(Bound(0.99, 8000.0),)),
    SLOContract(service_id="report-gen-monthly", latency=(Bound(0.99, 20000.0),)),
    SLOContract(service_id="batch"),
]
MAP = """
risk-scoring: [domain-0]
report-gen: {home: [1, domain-2], backup: [domain-0]}
"""


def assignment(text: str = MAP) -> DomainAssignment:
    return DomainAssignment(parse_fault_map(text, "map.yaml"), DOMAINS)


def test_a_contract_runs_on_its_home_domains_and_one_without_an_entry_anywhere() -> None:
    domains = assignment()
    assert domains.serving("risk-scoring") == ("0",)
    assert domains.serving("report-gen") == ("1", "2")
    assert domains.serving("batch") == ("0", "1", "2")


def test_children_and_sub_tasks_have_the_entry_of_the_nearest_ancestor() -> None:
    domains = assignment(MAP + "report-gen-monthly: [domain-2]\n'*': [domain-1]\n")
    assert domains.serving("report-gen/summary") == ("1", "2")
    assert domains.serving("report-gen-daily") == ("1", "2")
    assert domains.serving("report-gen-monthly-eu") == ("2",)
    assert domains.serving("report-generator") == ("1",)


def test_backups_take_over_in_order_and_only_when_every_home_domain_is_down() -> None:
    domains = assignment()
    domains.set_up(["0", "2"])
    assert domains.serving("report-gen") == ("2",)
    domains.set_up(["0"])
    assert domains.serving("report-gen") == ("0",)
    domains.set_up(["1", "2"])
    assert domains.serving("risk-scoring") == ("1",)
    domains.set_up(["0", "1", "2"])
    assert domains.serving("risk-scoring") == ("0",)


def test_without_a_backup_a_contract_waits_for_its_home() -> None:
    domains = assignment("risk-scoring: {home: [domain-0], backup: []}")
    domains.set_up(["1", "2"])
    assert domains.serving("risk-scoring") == ()


def load_and_resolve(file: Path) -> None:
    contract_ids = [each.service_id for each in CONTRACTS]
    resolve_fault_map(load_fault_map(file), DOMAINS, contract_ids=contract_ids, source=str(file))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a]", "a mapping of contracts"),
        ("a: b: c", "not valid YAML"),
        ("risk-scoring: [0]\nrisk-scoring: [1]", "is given twice; expected it once"),
        ("risk-scoring: domain-0", "risk-scoring: 'domain-0' is not accepted; expected a list"),
        ("risk-scoring: []", "risk-scoring: no home domain is named"),
        ("risk-scoring: {homes: [domain-0]}", "unknown key 'homes'; accepted: home, backup"),
        ("risk-scoring: [domain-3]", "risk-scoring: domain 'domain-3' does not exist; accepted: domain-0, domain-1"),
        ("risk-scoring: [domain-0, 0]", "domain '0' is given twice"),
        ("risk-scoring: {home: [0], backup: [domain-0]}", "domain '0' is given twice"),
        ("risk-scorng: [domain-0]", "contract 'risk-scorng' is not registered; did you mean risk-scoring?"),
    ],
)
def test_what_is_wrong_with_a_map_is_told_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "map.yaml"
    file.write_text(text)
    with pytest.raises(UsageError) as raised:
        load_and_resolve(file)
    assert message in str(raised.value)
    assert "map.yaml" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_map_may_stand_in_a_section_of_its_own() -> None:
    assert parse_fault_map("fault_domains: {a: [0]}", "x") == parse_fault_map("a: ['0']", "x")


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


def run_history(policy: str, seed: int, *, kills: bool) -> list[FinishOutput]:
    """A random history under MAP; whoever starts a request must be serving its contract at that moment."""
    draw = random.Random(seed)
    scheduler = Scheduler(
        domains=[DomainSpec(name, 40) for name in DOMAINS],
        contracts=CONTRACTS,
        latency_model=make_model(),
        config=SchedulerConfig(
            policy=policy,
            max_step_tokens=32,
            max_running=4,
            max_model_len=96,
            block_size=4,
            host_blocks=40,
            fault_domains=parse_fault_map(MAP, "map"),
        ),
    )
    devices = {name: SimulatedDevice(name, make_model()) for name in DOMAINS}
    pending: dict[str, deque] = {name: deque() for name in DOMAINS}  # type: ignore[type-arg]
    ended: list[FinishOutput] = []
    offered, now = 0, 0.0
    for turn in range(2000):
        now += draw.random() * 0.05
        if turn < 80 and draw.random() < 0.4:
            offered += 1
            request = Request(
                request_id=f"r{turn}",
                contract_id=draw.choice(CONTRACTS).service_id,
                prompt_token_ids=[1] * draw.randint(1, 40),
                sampling=SamplingParams(max_tokens=draw.randint(1, 12)),
                arrival_s=now,
            )
            assert scheduler.add(request, now) is None
        if kills and turn in (20, 45, 70):
            name = draw.choice(DOMAINS)
            if scheduler.domains[name].is_up:
                scheduler.domain_failed(name, now)
                pending[name].clear()
                devices[name] = SimulatedDevice(name, make_model())
        if kills and turn in (60, 110):
            for name in DOMAINS:
                if not scheduler.domains[name].is_up:
                    scheduler.domain_ready(DomainSpec(name, 40), now)
        for name in DOMAINS:
            if scheduler.in_flight(name) < 2 and scheduler.has_work(name) and draw.random() < 0.7:
                plan = scheduler.plan(name, now)
                for new in plan.new_sequences if plan else ():
                    owner = next(s for s in scheduler._by_request.values() if s.sequence_id == new.sequence_id)
                    assert name in scheduler.assignment.serving(owner.request.contract_id)
                if plan is not None:
                    pending[name].append(devices[name].execute(plan))
            if pending[name] and draw.random() < 0.7:
                outputs = scheduler.observe(pending[name].popleft(), now)
                ended += [output for output in outputs if isinstance(output, FinishOutput)]
        if turn > 110 and len(ended) == offered:
            break
    assert len(ended) == offered
    return ended


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_keeps_contracts_to_their_domains(policy: str) -> None:
    allowed = {"risk-scoring": {"0"}, "report-gen": {"1", "2"}, "report-gen-monthly": {"1", "2"}}
    ended = run_history(policy, seed=1, kills=False)
    assert ended
    for output in ended:
        assert set(output.domain_ids) <= allowed.get(output.contract_id, set(DOMAINS))


@given(policy=st.sampled_from(list(POLICIES)), seed=st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_everybody_ends_and_starts_where_allowed_while_domains_die_and_come_back(policy: str, seed: int) -> None:
    run_history(policy, seed, kills=True)


def test_after_a_fault_new_requests_go_home_and_running_ones_stay() -> None:
    scheduler = Scheduler(
        domains=[DomainSpec(name, 40) for name in DOMAINS],
        contracts=CONTRACTS,
        latency_model=make_model(),
        config=SchedulerConfig(fault_domains=parse_fault_map(MAP, "map")),
    )

    def add(name: str, now: float) -> None:
        request = Request(
            request_id=name,
            contract_id="risk-scoring",
            prompt_token_ids=[1, 2],
            sampling=SamplingParams(max_tokens=8, ignore_eos=True),
            arrival_s=now,
        )
        assert scheduler.add(request, now) is None

    add("first", 0.0)
    assert not scheduler.has_work("1")
    assert scheduler.plan("0", 0.0) is not None
    assert scheduler.domain_failed("0", 0.1)[0] == 1
    assert not scheduler.has_work("2")
    moved = scheduler.plan("1", 0.1)
    assert moved is not None
    assert len(moved.new_sequences) == 1
    scheduler.domain_ready(DomainSpec("0", 40), 0.2)
    add("second", 0.2)
    assert [s.request.request_id for s in scheduler.domains["1"].running.values()] == ["first"]
    more = scheduler.plan("1", 0.2)
    assert more is None or not more.new_sequences
    home = scheduler.plan("0", 0.2)
    assert home is not None
    assert len(home.new_sequences) == 1
