"""Contracts of a scenario's classes: scales become milliseconds by the class's own unloaded time."""

from __future__ import annotations

from statistics import fmean

from superinfer.cli.bench.scenario import RequestClass, Scenario
from superinfer.cli.bench.trace import Trace
from superinfer.cli.bench.workload import RequestShape, sample_class, scenario_trace
from superinfer.contracts.contract import Bound, SLOContract
from superinfer.profiler.latency_model import LatencyModel

SAMPLES = 512
"""Requests drawn to find a class's mean unloaded time; they do not depend on the run's seed."""


def build_contracts(scenario: Scenario, model: LatencyModel, *, slo_scale: float = 1.0) -> dict[str, SLOContract]:
    """One contract per class, by service id. `slo_scale` multiplies every bound; bounds are whole milliseconds.

    A scaled bound is a multiple of the mean unloaded time over the class's own length distribution.
    """
    trace = scenario_trace(scenario)
    return {
        request_class.service_id: _contract(request_class, model, slo_scale, trace)
        for request_class in scenario.classes
    }


def unloaded_ms(items: list[RequestShape], model: LatencyModel) -> tuple[float, float, float | None]:
    """Mean unloaded (end-to-end, time to first token, time per output token) in ms; TPOT None for single tokens."""
    e2e = fmean(model.unloaded_s(item.prompt_tokens, item.output_tokens) for item in items)
    ttft = fmean(model.prefill_s(0, item.prompt_tokens) for item in items)
    per_token = [
        model.decodes_s(item.prompt_tokens + 1, item.output_tokens - 1) / (item.output_tokens - 1)
        for item in items
        if item.output_tokens > 1
    ]
    return e2e * 1e3, ttft * 1e3, fmean(per_token) * 1e3 if per_token else None


def _contract(request_class: RequestClass, model: LatencyModel, slo_scale: float, trace: Trace | None) -> SLOContract:
    slo = request_class.slo
    if slo is None:
        return SLOContract(
            service_id=request_class.service_id,
            priority=request_class.priority,
            precision_loss_allowed=request_class.precision_loss_allowed,
        )
    e2e, ttft, tpot = unloaded_ms(sample_class(request_class, SAMPLES, trace), model)

    def bounds(absolute: float | None, scale: float | None, unloaded: float | None) -> tuple[Bound, ...]:
        value = absolute if absolute is not None else scale and unloaded and scale * unloaded
        return (Bound(slo.percentile, float(max(1, round(value * slo_scale)))),) if value else ()

    return SLOContract(
        service_id=request_class.service_id,
        latency=bounds(slo.latency_ms, slo.slo_scale, e2e),
        ttft=bounds(slo.ttft_ms, slo.ttft_scale, ttft),
        tpot=bounds(slo.tpot_ms, slo.tpot_scale, tpot),
        priority=request_class.priority,
        precision_loss_allowed=request_class.precision_loss_allowed,
    )
