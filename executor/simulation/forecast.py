"""What is to be expected of the requests that a scheduler has, from now on: its own decisions, run ahead of time.

The scheduler's state is its answer: who waits, how far those have come that run, which steps are in flight. Run ahead
under a virtual clock, every step as long as the latency model and the steps so far let expect, it tells each request's
first and last token. What may arrive meanwhile is the caller's to say. The scheduler given is used up: hand in a copy.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from superinfer.profiler.latency_model import StepShape
from superinfer.scheduler.domain import DomainState, InFlightStep
from superinfer.scheduler.outputs import FinishOutput
from superinfer.scheduler.request import Request, SamplingParams
from superinfer.scheduler.scheduler import Scheduler
from superinfer.scheduler.steps import StepResult

Arrival = tuple[float, Request]
"""When a request reaches the scheduler, and the request."""

MOST_STEPS = 20_000
"""Steps after which a forecast gives up on those that have not ended."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """When a request is expected to have its first and its last token; NaN where it does not come to that."""

    first_token_s: float
    last_token_s: float


@dataclass(frozen=True, slots=True)
class EnginePace:
    """How an engine goes from step to step: the next one begins `gap_s` after the last one has ended, and is planned
    `lead_s` before that: what comes in between waits for a whole step more.
    """

    gap_s: float = 0.0
    lead_s: float = 0.0


AT_ONCE = EnginePace()


def forecast(
    scheduler: Scheduler,
    now: float,
    wanted: Collection[str],
    *,
    started_s: Mapping[str, float] | None = None,
    arrivals: Iterator[Arrival] | None = None,
    pace: EnginePace = AT_ONCE,
    step_s: Callable[[str, StepShape, float], float] | None = None,
) -> dict[str, Forecast]:
    """Run a scheduler ahead from `now` until the requests `wanted` have ended; it cannot be used for anything else
    afterwards.

    `started_s` says of the domains with steps in flight when the first of them began (`now` where it does not);
    `arrivals` are the requests that are expected to come, in order; `pace` says when steps are planned and begin.
    `step_s` says what a step of a domain takes that begins at a time; what steps so far let expect if None.
    """
    clock = _Clock(scheduler, now, started_s or {}, arrivals or iter(()), pace, step_s)
    return clock.run(set(wanted))


def expected_arrivals(scheduler: Scheduler, now: float, seed: int = 0) -> Iterator[Arrival]:
    """Requests as they have been coming of late: Poisson arrivals of each contract at its recent rate, of mean size."""
    generator = random.Random(seed)
    loads = {load.contract_id: load for load in scheduler.admission.arriving(now) if load.per_s > 0.0}
    due = [(now + generator.expovariate(load.per_s), contract_id) for contract_id, load in loads.items()]
    heapq.heapify(due)
    number = 0
    while due:
        at_s, contract_id = due[0]
        load = loads[contract_id]
        number += 1
        request = Request(
            request_id=f"expected-{number}",
            contract_id=contract_id,
            prompt_token_ids=[0] * max(round(load.prompt_tokens), 1),
            sampling=SamplingParams(max_tokens=max(round(load.output_tokens), 1), ignore_eos=True),
            arrival_s=at_s,
        )
        yield at_s, request
        heapq.heapreplace(due, (at_s + generator.expovariate(load.per_s), contract_id))


class _Clock:
    """The events of a forecast: arrivals, and the ends of the steps in flight."""

    def __init__(
        self,
        scheduler: Scheduler,
        now: float,
        started_s: Mapping[str, float],
        arrivals: Iterator[Arrival],
        pace: EnginePace,
        step_s: Callable[[str, StepShape, float], float] | None,
    ) -> None:
        self._scheduler = scheduler
        self._now = self._begun_s = now
        # As they are now: what is run ahead teaches nothing.
        self._speeds = {each: replace(scheduler.speeds.outlook[each]) for each in scheduler.domains}
        self._arrivals = arrivals
        self._pace = pace
        self._is_asked: set[str] = set()
        self._given_step_s = step_s
        self._flights: dict[str, deque[tuple[float, float, InFlightStep]]] = {}
        for domain in scheduler.domains.values():
            begin_s = started_s.get(domain.domain_id, now)
            flights = self._flights[domain.domain_id] = deque()
            for step in domain.in_flight.values():
                end_s = max(begin_s + self._step_s(domain, step, begin_s), now)
                flights.append((begin_s, end_s, step))
                begin_s = end_s + pace.gap_s

    def run(self, wanted: set[str]) -> dict[str, Forecast]:
        found: dict[str, Forecast] = {}
        arrival = next(self._arrivals, None)
        self._plan()
        for _ in range(MOST_STEPS):
            if wanted <= found.keys():
                break
            ends = [(flights[0][1], domain_id) for domain_id, flights in self._flights.items() if flights]
            end_s, domain_id = min(ends, default=(math.inf, ""))
            plan_s = min((end - self._pace.lead_s for end, each in ends if self._may_ask(each)), default=math.inf)
            if arrival is not None and arrival[0] <= min(plan_s, end_s):
                self._now = max(arrival[0], self._now)
                self._scheduler.add(arrival[1], self._now)
                arrival = next(self._arrivals, None)
                self._is_asked.clear()  # those that had nothing to plan
            elif plan_s < end_s:
                self._now = max(plan_s, self._now)
            elif end_s < math.inf:
                self._end_step(domain_id, found)
            else:
                break
            self._plan()
        return {each: found.get(each, Forecast(math.nan, math.nan)) for each in wanted}

    def _may_ask(self, domain_id: str) -> bool:
        """Whether a domain's next step is to be planned before the one in flight has ended."""
        return self._pace.lead_s > 0.0 and len(self._flights[domain_id]) == 1 and domain_id not in self._is_asked

    def _end_step(self, domain_id: str, found: dict[str, Forecast]) -> None:
        begin_s, self._now, step = self._flights[domain_id].popleft()
        self._is_asked.discard(domain_id)
        result = _result(self._scheduler, domain_id, step, begin_s, self._now)
        for output in self._scheduler.observe(result, self._now):
            if isinstance(output, FinishOutput):
                found[output.request_id] = Forecast(output.first_token_s, output.last_token_s)

    def _plan(self) -> None:
        """A step for each domain that has none, or whose last one ends so soon."""
        for domain_id, flights in self._flights.items():
            if flights and not (self._may_ask(domain_id) and flights[0][1] - self._pace.lead_s <= self._now):
                continue
            if flights:
                self._is_asked.add(domain_id)
            if not self._scheduler.has_work(domain_id) or self._scheduler.plan(domain_id, self._now) is None:
                continue
            domain = self._scheduler.domains[domain_id]
            step = next(reversed(domain.in_flight.values()))
            begin_s = max(self._now, flights[-1][1] if flights else 0.0) + self._pace.gap_s
            flights.append((begin_s, begin_s + self._step_s(domain, step, begin_s), step))

    def _step_s(self, domain: DomainState, step: InFlightStep, begin_s: float) -> float:
        if self._given_step_s is not None:
            return self._given_step_s(domain.domain_id, step.shape, begin_s)
        speed, model = self._speeds[domain.domain_id], self._scheduler.speeds.model_of(domain.domain_id)
        return speed.step_s(model, step.shape, begin_s - self._begun_s)


def _result(scheduler: Scheduler, domain_id: str, step: InFlightStep, begin_s: float, end_s: float) -> StepResult:
    """What a worker would report of a step: a token of each sequence that samples in it and has not ended."""
    result = StepResult(domain_id=domain_id, step_id=step.step_id, started_s=begin_s, finished_s=end_s)
    owners = (scheduler.sequence(each) for each in step.batch.sequence_ids)
    samples = [owner for owner in owners if owner is not None]
    for sequence, end in zip(step.prefills, step.ends, strict=True):
        if end >= sequence.prefill_target and scheduler.sequence(sequence.sequence_id) is sequence:
            samples.append(sequence)
    for sequence in samples:
        index = len(sequence.outputs)
        result.sequence_ids.append(sequence.sequence_id)
        result.output_indices.append(index)
        result.token_ids.append(0)
        if index + 1 >= min(sequence.request.sampling.max_tokens, sequence.expected_outputs):
            result.ends.append((sequence.sequence_id, "length"))
    return result
