"""What overload must not do to requests that can still make it."""

from __future__ import annotations

from superinfer.contracts.contract import Bound, SLOContract
from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.config import DomainSpec, SchedulerConfig
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
