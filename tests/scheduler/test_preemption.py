"""Who gives way to an urgent request while steps are in flight, where nothing is rotated."""

from __future__ import annotations

import pytest

from superinfer.contracts.contract import Bound, SLOContract
from superinfer.executor.simulated import SimulatedDevice
from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.config import DomainSpec, SchedulerConfig
from superinfer.scheduler.request import Request, SamplingParams
from superinfer.scheduler.scheduler import Scheduler
from superinfer.scheduler.steps import StepPlan

MODEL = LatencyModel(
    launch_s=0.01,
    linear_points=[(1, 0.0), (64, 0.1), (256, 0.4)],
    decode_context_s=0.0,
    decode_s=1e-4,
    prefill_pair_s=0.0,
    chunk_s=0.0,
    row_s=0.0,
)
BLOCKS, BLOCK_SIZE = 8, 16


def make_request(name: str, contract_id: str, prompt: int, outputs: int) -> Request:
    sampling = SamplingParams(max_tokens=outputs, ignore_eos=True)
    return Request(
        request_id=name, contract_id=contract_id, prompt_token_ids=[1] * prompt, sampling=sampling, arrival_s=0.0
    )


@pytest.mark.parametrize("prompt", [100, 40], ids=["while it prefills", "while it decodes"])
def test_a_sequence_that_has_to_give_way_gets_no_more_steps_and_does_so_when_its_last_one_is_over(prompt: int) -> None:
    scheduler = Scheduler(
        domains=[DomainSpec("domain-0", BLOCKS)],
        contracts=[SLOContract(service_id="chat", latency=(Bound(0.99, 5000.0),))],
        latency_model=MODEL,
        config=SchedulerConfig(max_step_tokens=24, block_size=BLOCK_SIZE, max_model_len=BLOCKS * BLOCK_SIZE),
    )
    device = SimulatedDevice("domain-0", MODEL)
    scheduler.add(make_request("patient", "", prompt, 120 - prompt), 0.0)
    in_flight: list[StepPlan] = []

    def step() -> StepPlan:
        """Plan one step while the one before it runs, as the engine does; then that one ends."""
        plan = scheduler.plan("domain-0", device.now)
        if plan is not None:
            in_flight.append(plan)
        if len(in_flight) > 1 or plan is None:
            result = device.execute(in_flight.pop(0))
            device.now = result.finished_s
            scheduler.observe(result, device.now)
        return plan or StepPlan(domain_id="domain-0", step_id=-1)

    for _ in range(4):
        step()
    scheduler.add(make_request("urgent", "chat", 100, 2), device.now)
    steps = [step() for _ in range(20)]
    entered = next(
        number for number, plan in enumerate(steps) if any(new.sequence_id == 1 for new in plan.new_sequences)
    )
    assert entered <= 2, "the step in flight, one in which it gives way"
    assert scheduler.stats(device.now).recomputations == 1
