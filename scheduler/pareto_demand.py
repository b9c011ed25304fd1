"""What a contract needs of a device: the queueing model behind the Pareto optimizer.

A contract that is given a share x of a device of relative speed v drains its device work at rate x·v. A request
brings C seconds of device work (its prefill, and its part of decode steps shared by `decode_batch` sequences);
they arrive as a Poisson stream of rate λ. Of the rate x·v, λ·C serves the stream itself; the rest is the
*headroom* g = x·v − λ·C. As in M/M/1 the time in system is exponential with mean C/g, so its p-quantile is
C·ln(1/(1−p))/g. To it the request's own unloaded time F/v is added, because steps of one request follow each other
and cannot be shortened by capacity. Every bound D at percentile p therefore asks for

    g ≥ C·ln(1/(1−p)) / (D − F/v),

and a jitter bound J (standard deviation) for g ≥ C/J. All of it is linear in the device's time.

Limits. Lengths of one contract are taken at one typical value, the spread of work as exponential (pessimistic for
equal requests, optimistic for heavy tails), arrivals as Poisson (optimistic for bursts). The request's own work is
counted in both terms (pessimistic). Contracts are independent: time that one leaves unused is not lent to another
(pessimistic). Which step holds which tokens is the scheduler's affair, not this model's. It sizes shares; it
promises no single request anything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from superinfer.contracts.contract import Bound, SLOContract
from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.topology import OfferedLoad


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """One model at one precision: its latency model (relative compute 1) and what it occupies, in bytes."""

    latency: LatencyModel
    weight_bytes: float
    kv_bytes_per_token: float


@dataclass(frozen=True, slots=True)
class TimeBound:
    """At `percentile` the milestone is reached within `bound_s`, of which `floor_s` / speed no capacity can remove.

    A bound on the mean of `count` times, those per token, is held as one on their sum.
    """

    milestone: str
    percentile: float
    bound_s: float
    floor_s: float
    count: int = 1

    @property
    def factor(self) -> float:
        """ln(1 / (1 − p)): the quantile of an exponential time over its mean."""
        return -math.log1p(-self.percentile)


@dataclass(frozen=True, slots=True)
class ContractDemand:
    """What one contract offers and asks. Without bounds and jitter it is best effort.

    `work_s` is the device time of a request and `floor_s` its unloaded time, both at relative compute 1;
    `gb_per_busy_s` what it moves in a second of such device time; `request_memory_gb` the KV of one request;
    `reserved_memory_gb` what the contract wants set aside on each of its devices, `min_devices` how many at least.
    """

    name: str
    rate_per_s: float
    work_s: float
    floor_s: float
    gb_per_busy_s: float = 0.0
    request_memory_gb: float = 0.0
    bounds: tuple[TimeBound, ...] = ()
    max_jitter_s: float | None = None
    reserved_memory_gb: float = 0.0
    min_devices: int = 1

    @property
    def is_best_effort(self) -> bool:
        """True where nothing was promised: it gets what the others leave."""
        return not self.bounds and self.max_jitter_s is None

    def headroom(self, speed: float) -> float:
        """Device seconds per second beyond its own work that every bound needs on a device; inf if none suffices."""
        needed = 0.0 if self.max_jitter_s is None else self.work_s / self.max_jitter_s
        for bound in self.bounds:
            left_s = bound.bound_s - bound.floor_s / speed
            if left_s <= 0.0:
                return math.inf
            needed = max(needed, self.work_s * bound.factor / left_s)
        return needed

    def residence_s(self, speed: float) -> float:
        """Mean time that a request's KV stays on a device where the headroom is just what the bounds need."""
        headroom = self.headroom(speed)
        waiting_s = self.work_s / headroom if headroom > 0.0 else self.floor_s / speed
        return self.floor_s / speed + waiting_s

    def predicted_s(self, bound: TimeBound, speed: float, headroom: float) -> float:
        """The bound's quantile when `headroom` device seconds per second are given; inf without any."""
        return bound.floor_s / speed + self.work_s * bound.factor / headroom if headroom > 0.0 else math.inf


def contract_demand(
    contract: SLOContract, name: str, load: OfferedLoad, costs: ModelCosts, *, decode_batch: int = 8
) -> ContractDemand:
    """The demand of a contract under an offered load. Floors take the latency model's 90 % quantile, work its mean."""
    model, outputs = costs.latency, load.output_tokens
    context = load.prompt_tokens + outputs // 2
    prefill_s = model.prefill_s(0, load.prompt_tokens)
    decode_step_s = decode_batch * model.shared_decode_s(decode_batch, context)
    decodes_s = (outputs - 1) * decode_step_s
    work_s = prefill_s + decodes_s / decode_batch
    prefill_floor_s, decode_floor_s = model.upper_ratio * prefill_s, model.upper_ratio * decodes_s
    bounds = [
        *_time_bounds("latency", contract.latency, prefill_floor_s + decode_floor_s),
        *_time_bounds("ttft", contract.ttft, prefill_floor_s),
    ]
    if outputs > 1:
        # A bound on the mean time per token is one on the whole decode.
        bounds += _time_bounds("tpot", contract.tpot, decode_floor_s, count=outputs - 1)
    read_bytes = costs.weight_bytes + load.prompt_tokens * costs.kv_bytes_per_token
    read_bytes += (outputs - 1) * (costs.weight_bytes / decode_batch + context * costs.kv_bytes_per_token)
    return ContractDemand(
        name=name,
        rate_per_s=load.rate_per_s,
        work_s=work_s,
        floor_s=prefill_floor_s + decode_floor_s,
        gb_per_busy_s=read_bytes / 1e9 / work_s,
        request_memory_gb=(load.prompt_tokens + outputs) * costs.kv_bytes_per_token / 1e9,
        bounds=tuple(bounds),
        max_jitter_s=None if contract.max_jitter_ms is None else contract.max_jitter_ms / 1e3,
        reserved_memory_gb=(contract.resources.memory_per_gpu_mb or 0.0) / 1e3,
        min_devices=contract.resources.min_gpu_count,
    )


def _time_bounds(milestone: str, bounds: tuple[Bound, ...], floor_s: float, *, count: int = 1) -> list[TimeBound]:
    return [TimeBound(milestone, each.percentile, count * each.bound_ms / 1e3, floor_s, count) for each in bounds]
