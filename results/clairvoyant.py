"""What a scheduler that knew the future could reach on the load that was offered: a yardstick for attainment.

A practical bound, not a proof, and made to be hard to reach. Requests are fluid on a device of capacity one per domain:

- The *work* of a request is the least device time it can cost by the latency model: every prompt token at the cost of
  the best chunk, every output token at its share of a decode step as wide as the request's own deadline permits, and
  at most `max_running` wide.
- A request advances no faster than alone on a device.
- Contracts that allow at most twice the time of the tightest one are *tight*, where a looser one was offered as well.
  All tight requests count as met and are served first, by arrival.
- The rest of the capacity goes to the loose requests by shortest remaining work, known exactly and at once. One that
  can no longer meet its deadline, even if it were served alone from now on, is given up and costs nothing more.

There is no noise, no memory limit, no fault, and no step whose length a tight request would have to wait for. Loose
requests are chosen by shortest remaining work rather than by an optimum over all subsets, so that a run may in
principle exceed the bound; where requests of one contract wait together the choice is optimal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from superinfer.contracts.contract import SLOContract
from superinfer.profiler.latency_model import LatencyModel

TIGHT_RATIO = 2.0
SETTLED_S = 1e-9
"""Work below this is done: the sums of floats that precede it are no better."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One request of the load; `arrival_s` counts from the start of the run."""

    service_id: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Job:
    """A request as the bound sees it: device time it costs, time it takes alone, and when it has to be done."""

    arrival_s: float
    work_s: float
    alone_s: float
    deadline_s: float
    is_tight: bool = False


class ClairvoyantBound(msgspec.Struct, frozen=True, kw_only=True):
    """Attainment that the bound allows, over all requests with a promise and per contract with one."""

    attainment: float
    contracts: dict[str, float]


def clairvoyant_bound(
    offers: Sequence[Offer],
    contracts: Mapping[str, SLOContract],
    model: LatencyModel,
    *,
    domains: int = 1,
    max_running: int = 64,
) -> ClairvoyantBound | None:
    """The bound for a load on `domains` equal devices; None where nothing was promised to any request of it."""
    promised = [offer for offer in offers if not contracts[offer.service_id].is_best_effort]
    if not promised:
        return None
    tight, fitted = tight_contracts(promised, contracts), model.fresh()
    jobs = [_job(offer, contracts[offer.service_id], fitted, max_running, tight) for offer in promised]
    met = serve(jobs, capacity=float(domains))
    by_contract: dict[str, list[bool]] = {}
    for offer, is_met in zip(promised, met, strict=True):
        by_contract.setdefault(offer.service_id, []).append(is_met)
    return ClairvoyantBound(
        attainment=sum(met) / len(met),
        contracts={service_id: sum(each) / len(each) for service_id, each in by_contract.items()},
    )


def allowed_s(contract: SLOContract, output_tokens: int) -> float:
    """Time to completion that a contract allows: its end-to-end bound, or first token and all others at theirs."""
    bounds_ms = []
    if contract.deadline_ms is not None:
        bounds_ms.append(contract.deadline_ms)
    if contract.ttft_deadline_ms is not None and contract.tpot_deadline_ms is not None:
        bounds_ms.append(contract.ttft_deadline_ms + (output_tokens - 1) * contract.tpot_deadline_ms)
    return min(bounds_ms, default=math.inf) / 1e3


def tight_contracts(offers: Iterable[Offer], contracts: Mapping[str, SLOContract]) -> set[str]:
    """Contracts within `TIGHT_RATIO` of the tightest; none where that is all of them."""
    least: dict[str, float] = {}
    for offer in offers:
        allowed = allowed_s(contracts[offer.service_id], offer.output_tokens)
        least[offer.service_id] = min(least.get(offer.service_id, math.inf), allowed)
    tight = {service_id for service_id, allowed in least.items() if allowed <= TIGHT_RATIO * min(least.values())}
    return tight if len(tight) < len(least) else set()


def least_work_s(offer: Offer, allowed: float, model: LatencyModel, max_running: int) -> float:
    """The least device time that a request can cost, if it is to end within the time allowed."""
    context = offer.prompt_tokens + offer.output_tokens // 2
    decodes = offer.output_tokens - 1
    prefill_token_s = min(model.prefill_s(0, int(tokens)) / int(tokens) for tokens, _ in model.linear_points)
    least = offer.prompt_tokens * prefill_token_s
    if decodes < 1:
        return least
    longest_step_s = max(allowed - model.prefill_s(0, offer.prompt_tokens), 0.0) / decodes
    shares = [
        model.shared_decode_s(width, context)
        for width in range(1, max_running + 1)
        if width == 1 or width * model.shared_decode_s(width, context) <= longest_step_s
    ]
    return least + decodes * min(shares)


def serve(jobs: Sequence[Job], *, capacity: float) -> list[bool]:
    """Which jobs are met: tight ones always, and first; loose ones by shortest remaining work."""
    met = [job.is_tight for job in jobs]
    left = [job.work_s for job in jobs]
    arrivals = sorted(range(len(jobs)), key=lambda i: jobs[i].arrival_s)
    active: list[int] = []
    now, following = 0.0, 0
    while active or following < len(arrivals):
        if not active:
            now = max(now, jobs[arrivals[following]].arrival_s)
        while following < len(arrivals) and jobs[arrivals[following]].arrival_s <= now:
            active.append(arrivals[following])
            following += 1
        active = [i for i in active if jobs[i].is_tight or _can_make_it(jobs[i], left[i], now)]
        active.sort(key=lambda i: (not jobs[i].is_tight, jobs[i].arrival_s if jobs[i].is_tight else left[i], i))
        rates = _rates(jobs, active, capacity)
        until = min((now + left[i] / rate for i, rate in rates.items()), default=math.inf)
        if following < len(arrivals):
            until = min(until, jobs[arrivals[following]].arrival_s)
        if not active:
            continue
        for i, rate in rates.items():
            left[i] -= rate * (until - now)
        now = until
        for i in active:
            if left[i] <= SETTLED_S:
                met[i] = met[i] or now <= jobs[i].deadline_s + SETTLED_S
        active = [i for i in active if left[i] > SETTLED_S]
    return met


def _rates(jobs: Sequence[Job], order: Sequence[int], capacity: float) -> dict[int, float]:
    """Share of a device for each job in turn: as fast as it can go, until nothing is left."""
    rates: dict[int, float] = {}
    for i in order:
        rate = min(_fastest(jobs[i]), capacity)
        if rate <= 0.0:
            break
        rates[i] = rate
        capacity -= rate
    return rates


def _fastest(job: Job) -> float:
    return min(job.work_s / job.alone_s, 1.0)


def _can_make_it(job: Job, left_s: float, now: float) -> bool:
    return now + left_s / _fastest(job) <= job.deadline_s + SETTLED_S


def _job(offer: Offer, contract: SLOContract, model: LatencyModel, max_running: int, tight: set[str]) -> Job:
    allowed = allowed_s(contract, offer.output_tokens)
    return Job(
        arrival_s=offer.arrival_s,
        work_s=least_work_s(offer, allowed, model, max_running),
        alone_s=model.unloaded_s(offer.prompt_tokens, offer.output_tokens),
        deadline_s=offer.arrival_s + allowed,
        is_tight=offer.service_id in tight,
    )
