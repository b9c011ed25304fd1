"""What overload must not do to requests that can still make it."""

from __future__ import annotations

from superinfer.contracts.contract import Bound, SLOContract
from superinfer.executor.simulated import SimulatedDevice
from superinfer.executor.simulation.loop import simulate
from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.ageing import Ageing
from superinfer.scheduler.config import DomainSpec, SchedulerConfig
from superinfer.scheduler.policies.slack import SlackPolicy
from superinfer.scheduler.request import Request, SamplingParams
from superinfer.scheduler.scheduler import Scheduler

MODEL = LatencyModel(
    launch_s=0.01,
    linear_points=[(1, 0.0), (64, 0.1), (256, 0.4)],
    decode_context_s=0.0,
    decode_s=1e-4,
    prefill_pair_s=0.0,
    chunk_s=0.0,
    row_s=0.0,
)


def make_request(name: str, arrival_s: float) -> Request:
    return Request(
        request_id=name,
        contract_id="chat",
        prompt_token_ids=[1] * 32,
        sampling=SamplingParams(max_tokens=4, ignore_eos=True),
        arrival_s=arrival_s,
    )


def test_a_request_that_can_make_it_is_seen_behind_any_number_that_cannot() -> None:
    scheduler = Scheduler(
        domains=[DomainSpec("domain-0", 64)],
        contracts=[SLOContract(service_id="chat", latency=(Bound(0.99, 1000.0),))],
        latency_model=MODEL,
        config=SchedulerConfig(max_step_tokens=32),
    )
    for number in range(200):
        scheduler.add(make_request(f"old-{number}", number / 1000), number / 1000)
    scheduler.add(make_request("fresh", 9.0), 9.0)
    plan = scheduler.plan("domain-0", 9.0)
    assert plan is not None
    assert [new.sequence_id for new in plan.new_sequences] == [200]


def tight_load(seconds: float, gap_s: float) -> list[Request]:
    count = int(seconds / gap_s)
    return [make_request(f"chat-{number}", number * gap_s) for number in range(count)]


def test_best_effort_moves_on_beside_contracts_that_leave_nothing_over_and_they_do_not_pay_for_it() -> None:
    contracts = [SLOContract(service_id="chat", latency=(Bound(0.99, 300.0),))]
    patient = Request(
        request_id="patient",
        contract_id="best-effort",
        prompt_token_ids=[1] * 8,
        sampling=SamplingParams(max_tokens=8, ignore_eos=True),
        arrival_s=0.5,
    )
    load = [*tight_load(60.0, 0.07), patient]
    finished_s, met = {}, {}
    for name, ageing in {"off": Ageing(after_s=1e6), "on": Ageing(after_s=5.0)}.items():
        config = SchedulerConfig()
        policy = SlackPolicy(MODEL.fresh(), ageing=ageing)
        run = simulate(load, contracts=contracts, model=MODEL, config=config, policy=policy)
        fates = list(run.requests)
        finished_s[name] = next(fate.finished_s for fate in fates if fate.request_id == "patient")
        met[name] = sum(bool(fate.met) for fate in fates)
    assert finished_s["off"] > 60.0
    assert finished_s["on"] < 40.0
    assert met["on"] >= met["off"]


def test_contracts_that_nothing_could_hold_do_not_make_best_effort_run_one_by_one() -> None:
    scheduler = Scheduler(
        domains=[DomainSpec("domain-0", 64)],
        contracts=[SLOContract(service_id="chat", latency=(Bound(0.99, 1.0),))],
        latency_model=MODEL,
        config=SchedulerConfig(),
    )
    scheduler.add(make_request("hopeless", 0.0), 0.0)
    scheduler.abort("hopeless", 0.1)
    for number in range(4):
        request = make_request(f"batch-{number}", 0.2)
        request.contract_id = "best-effort"
        scheduler.add(request, 0.2)
    device = SimulatedDevice("domain-0", MODEL.fresh())
    now, widest = 0.2, 0
    while (plan := scheduler.plan("domain-0", now)) is not None:
        widest = max(widest, len(plan.decodes))
        device.now = now
        result = device.execute(plan)
        now = result.finished_s
        scheduler.observe(result, now)
    assert widest > 1
