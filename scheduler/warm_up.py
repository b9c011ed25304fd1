"""Have every compiled loop in memory before the first request comes: from disk that takes a second, on the first run on
a machine, when they are compiled, a minute.
"""

from __future__ import annotations

import msgspec

from superinfer.contracts.contract import Bound, SLOContract
from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.config import DomainSpec, SchedulerConfig
from superinfer.scheduler.request import Request, SamplingParams
from superinfer.scheduler.scheduler import Scheduler
from superinfer.scheduler.steps import SampledToken, StepPlan, StepResult

_DOMAIN_ID = "warm-up"
_CONTRACTS = [
    SLOContract(service_id="tight", latency=(Bound(0.99, 1e6),)),
    SLOContract(service_id="loose", latency=(Bound(0.99, 1e8),)),
]
_OUTPUTS = 3


def warm_up(model: LatencyModel, config: SchedulerConfig) -> None:
    """Serve a request of each of two contracts on a domain that there is not."""
    scheduler = Scheduler(
        domains=[DomainSpec(_DOMAIN_ID, 64)],
        contracts=_CONTRACTS,
        latency_model=model.fresh(),
        config=msgspec.structs.replace(config, fault_domains={}),
    )
    for contract in _CONTRACTS:
        request = Request(
            request_id=contract.service_id,
            contract_id=contract.service_id,
            prompt_token_ids=[0],
            sampling=SamplingParams(max_tokens=_OUTPUTS),
            arrival_s=0.0,
        )
        scheduler.add(request, 0.0)
    outputs: dict[int, int] = {}
    while (plan := scheduler.plan(_DOMAIN_ID, 0.0)) is not None:
        scheduler.observe(_run(plan, outputs), 0.0)


def _run(plan: StepPlan, outputs: dict[int, int]) -> StepResult:
    result = StepResult(domain_id=_DOMAIN_ID, step_id=plan.step_id, started_s=0.0, finished_s=0.0)
    for sequence_id in (*plan.decodes, *(step.sequence_id for step in plan.sequences)):
        index = outputs.get(sequence_id, 0)
        outputs[sequence_id] = index + 1
        result.add(SampledToken(sequence_id, index, 0, "length" if index + 1 == _OUTPUTS else None))
    return result
