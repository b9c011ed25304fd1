"""The event loop: arrivals, ends of steps and faults in the order of a virtual clock.

Every figure that comes from here is a simulated one and has to be labelled so.
"""

from __future__ import annotations

import contextlib
import gc
import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from superinfer.contracts.contract import SLOContract
from superinfer.executor.simulated import SimulatedDevice
from superinfer.executor.simulation.fates import Fates
from superinfer.executor.simulation.faults import DomainFault, FaultRecord
from superinfer.profiler.drift import Drift
from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.config import DomainSpec, SchedulerConfig
from superinfer.scheduler.domain_kind import DomainKind
from superinfer.scheduler.fast_forward import Horizon, Stretch
from superinfer.scheduler.outputs import FinishOutput, Output
from superinfer.scheduler.policies.base import Policy
from superinfer.scheduler.request import Request
from superinfer.scheduler.scheduler import Scheduler
from superinfer.scheduler.steps import StepPlan, StepResult

PROGRESS_EVERY = 2000
"""Requests between two calls of `on_progress`."""


@dataclass(slots=True)
class Simulation:
    """The outcome of one simulated run: requests in order of arrival, the time of the last end, steps planned."""

    requests: Fates
    duration_s: float
    steps: int
    faults: list[FaultRecord] = field(default_factory=list)

    @property
    def output_tokens(self) -> int:
        """Tokens produced."""
        return sum(self.requests.output_tokens)


@dataclass(frozen=True, slots=True)
class _StepEnd:
    """The end of a step on a domain that has died `deaths` times before."""

    result: StepResult
    deaths: int


@dataclass(frozen=True, slots=True)
class _StretchEnd:
    """The end of steps that were taken together."""

    stretch: Stretch


@dataclass(frozen=True, slots=True)
class _PlanDue:
    """A domain that has died `deaths` times before may be told its next step."""

    domain_id: str
    deaths: int


@dataclass(frozen=True, slots=True)
class _Death:
    fault: DomainFault


@dataclass(frozen=True, slots=True)
class _Detection:
    record: FaultRecord


@dataclass(frozen=True, slots=True)
class _Return:
    record: FaultRecord


_Event = _StepEnd | _StretchEnd | _PlanDue | _Death | _Detection | _Return


def simulate(
    requests: Iterable[Request],
    *,
    contracts: list[SLOContract],
    model: LatencyModel,
    config: SchedulerConfig,
    domains: int | Sequence[DomainSpec] = 1,
    kv_blocks: int = 4096,
    sigma: float = 0.0,
    drift: Drift | None = None,
    seed: int = 0,
    overhead_s: float = 0.0,
    lead_s: float | None = None,
    block_copy_s: float = 0.0,
    kinds: Sequence[DomainKind] = (),
    copies_s: Mapping[str, float] | None = None,
    faults: Sequence[DomainFault] = (),
    policy: Policy | None = None,
    fast_forward: bool = True,
    on_progress: Callable[[int, float], None] = lambda done, now: None,
) -> Simulation:
    """Run the requests (with arrival times from 0) through a scheduler on simulated devices.

    A list is sorted by arrival; any other iterable has to come in that order and is read as the clock moves on, so that
    a long trace never lies in memory. A domain plans its next step when the last one ends; with a `lead_s`, so long
    before the time at which the last one is expected to end, as the engine does: what arrives after that waits for a
    whole step more. Then no steps are taken together.
    `domains` are specs, or a number of domains of `kv_blocks` each; `overhead_s` is the gap between steps, and
    `block_copy_s` the time that each rotated KV block adds to the step before which it is copied. With
    `fast_forward` steps are taken together while nothing can change a decision. `on_progress` gets the number of
    requests that have arrived, and the virtual time.

    Where domains are unequal `kinds` are theirs, each with its latency model, and `copies_s` is `block_copy_s` by kind.
    """
    fresh = [replace(kind, latency_model=kind.latency_model.fresh()) for kind in kinds]
    specs = [DomainSpec(f"domain-{i}", kv_blocks) for i in range(domains)] if isinstance(domains, int) else domains
    scheduler = Scheduler(
        domains=list(specs),
        contracts=contracts,
        latency_model=model.fresh(),
        config=config,
        policy=policy,
        kinds=fresh,
    )
    loop = _Loop(
        scheduler,
        {spec.domain_id: spec for spec in specs},
        model,
        sigma,
        drift,
        seed,
        overhead_s,
        lead_s,
        block_copy_s,
        fast_forward and lead_s is None,
        {kind.kind_id: kind.latency_model for kind in kinds},
        copies_s or {},
    )
    for fault in faults:
        loop.push(fault.time_s, _Death(fault))
    ordered = sorted(requests, key=lambda r: r.arrival_s) if isinstance(requests, list) else requests
    with _no_collection():
        loop.run(iter(ordered), on_progress)
    return Simulation(loop.fates, loop.last_end_s, loop.steps, loop.records)


class _Loop:
    """The clock, what is due, and the devices."""

    def __init__(
        self,
        scheduler: Scheduler,
        specs: dict[str, DomainSpec],
        model: LatencyModel,
        sigma: float,
        drift: Drift | None,
        seed: int,
        overhead_s: float,
        lead_s: float | None,
        block_copy_s: float,
        fast_forward: bool,
        models: Mapping[str, LatencyModel],
        copies_s: Mapping[str, float],
    ) -> None:
        self.scheduler = scheduler
        self.now = 0.0
        self.last_end_s = 0.0
        self.steps = 0
        self.fates = Fates()
        self.records: list[FaultRecord] = []
        self._specs = specs
        self._model, self._sigma, self._drift, self._seed = model, sigma, drift, seed
        self._overhead_s, self._lead_s, self._block_copy_s = overhead_s, lead_s, block_copy_s
        self._fast_forward = fast_forward
        self._models, self._copies_s = models, copies_s
        self._next_arrival_s = math.inf
        self._disturbances_s: list[float] = []
        self._devices = {domain_id: self._device(domain_id, 0) for domain_id in specs}
        self._deaths = dict.fromkeys(specs, 0)
        self._busy_until_s = dict.fromkeys(specs, 0.0)
        self._dead: set[str] = set()
        self._idle = dict.fromkeys(specs)
        self._order = itertools.count()
        self._events: list[tuple[float, int, _Event]] = []

    def push(self, time_s: float, event: _Event) -> None:
        """Something is due at a time; what is due at the same time happens in the order in which it was pushed."""
        heapq.heappush(self._events, (time_s, next(self._order), event))
        if not isinstance(event, (_StepEnd, _StretchEnd, _PlanDue)):
            heapq.heappush(self._disturbances_s, time_s)

    def run(self, arrivals: Iterator[Request], on_progress: Callable[[int, float], None]) -> None:
        """Until nothing is due any more. An arrival goes before what is due at the same time."""
        request = next(arrivals, None)
        arrived = 0
        events, fates, scheduler = self._events, self.fates, self.scheduler
        while request is not None or events:
            if request is not None and (not events or request.arrival_s <= events[0][0]):
                if request.arrival_s < self.now:
                    raise ValueError(f"request {request.request_id} arrives at {request.arrival_s}, before {self.now}")
                self.now = request.arrival_s
                fates.arrived(request)
                refusal = scheduler.add(request, self.now)
                if refusal is not None:
                    fates.refused(request.request_id, refusal.message)
                arrived += 1
                if arrived % PROGRESS_EVERY == 0:
                    on_progress(arrived, self.now)
                request = next(arrivals, None)
            else:
                self.now, _, event = heapq.heappop(events)
                self._handle(event)
            self._next_arrival_s = math.inf if request is None else request.arrival_s
            upcoming = min(events[0][0] if events else math.inf, math.inf if request is None else request.arrival_s)
            if upcoming > self.now and self._idle:
                self._plan_idle()
        fates.left_open(scheduler.open_sequences)

    def _handle(self, event: _Event) -> None:
        if isinstance(event, _StepEnd):
            domain_id = event.result.domain_id
            if event.deaths == self._deaths[domain_id]:
                if self._lead_s is None:
                    self._idle[domain_id] = None
                self._note(self.scheduler.observe(event.result, self.now))
        elif isinstance(event, _PlanDue):
            if event.deaths == self._deaths[event.domain_id]:
                self._idle[event.domain_id] = None
        elif isinstance(event, _StretchEnd):
            stretch = event.stretch
            self._idle[stretch.domain_id] = None
            self.scheduler.speeds.learn(stretch.domain_id, stretch.last_shape, stretch.last_duration_s)
            self._note(self.scheduler.completed(stretch.sequences, self.now))
        elif isinstance(event, _Death):
            self._die(event.fault)
        elif isinstance(event, _Detection):
            record = event.record
            record.detected_s = self.now
            record.moved_requests, ended = self.scheduler.domain_failed(record.fault.domain_id, self.now)
            self._note(ended)
        else:
            self._return(event.record)

    def _plan_idle(self) -> None:
        """A step for each domain that has none in flight and something to do. Where domains are unequal, what one
        leaves may be for another that has been asked before.
        """
        while self._plan_each() and self.scheduler.placement is not None and self._idle:
            pass

    def _plan_each(self) -> bool:
        """One round in the order of the domains; whether there was a step."""
        scheduler, idle = self.scheduler, len(self._idle)
        for domain_id in [d for d in self._specs if d in self._idle] if len(self._idle) > 1 else list(self._idle):
            if self._fast_forward and domain_id not in self._dead and self._skip(domain_id):
                continue
            if not scheduler.has_work(domain_id):
                continue
            plan = scheduler.plan(domain_id, self.now)
            if plan is None:
                continue
            del self._idle[domain_id]
            self.steps += 1
            if domain_id in self._dead:
                continue
            device = self._devices[domain_id]
            deaths = self._deaths[domain_id]
            device.now = max(self.now, self._busy_until_s[domain_id]) + self._overhead_s
            result = device.execute(plan)
            if plan.rotate_out or plan.rotate_in:
                copy_s = self._copies_s.get(self._specs[domain_id].kind, self._block_copy_s)
                result.finished_s += copy_s * rotated_blocks(plan)
            self._busy_until_s[domain_id] = result.finished_s
            self.push(result.finished_s, _StepEnd(result, deaths))
            if self._lead_s is not None:
                expected_s = result.started_s + max(plan.predicted_s - self._lead_s, 0.0)
                self.push(min(expected_s, result.finished_s), _PlanDue(domain_id, deaths))
        return len(self._idle) < idle

    def _skip(self, domain_id: str) -> bool:
        """Take the next steps of a domain together where nothing can change a decision; False where one is to be
        planned.
        """
        if self.scheduler.queues.count or not self.scheduler.domains[domain_id].running:
            return False
        while self._disturbances_s and self._disturbances_s[0] <= self.now:
            heapq.heappop(self._disturbances_s)
        horizon = Horizon(self._next_arrival_s, self._disturbances_s[0] if self._disturbances_s else math.inf)
        device = self._devices[domain_id]
        device.now = self.now
        stretch = device.decode_until(self.scheduler, horizon, self._overhead_s)
        if stretch is None:
            return False
        self.steps += stretch.steps
        del self._idle[domain_id]
        self.push(stretch.end_s, _StretchEnd(stretch))
        return True

    def _die(self, fault: DomainFault) -> None:
        """The domain's step in flight is lost; a domain that is down already is left alone."""
        domain_id = fault.domain_id
        if domain_id in self._dead:
            return
        self._dead.add(domain_id)
        self._deaths[domain_id] += 1
        record = FaultRecord(fault, 0, self.fates.open_rows)
        self.records.append(record)
        self.push(self.now + fault.detection_s, _Detection(record))
        self.push(self.now + max(fault.restart_s, fault.detection_s), _Return(record))

    def _return(self, record: FaultRecord) -> None:
        domain_id = record.fault.domain_id
        record.ready_s = self.now
        self._dead.discard(domain_id)
        self._busy_until_s[domain_id] = self.now
        self._devices[domain_id] = self._device(domain_id, self._deaths[domain_id])
        self._idle[domain_id] = None
        self.scheduler.domain_ready(self._specs[domain_id], self.now)

    def _note(self, outputs: Iterable[Output]) -> None:
        now, fates = self.now, self.fates
        for output in outputs:
            if isinstance(output, FinishOutput):
                fates.finished(output, now)
                self.last_end_s = now

    def _device(self, domain_id: str, deaths: int) -> SimulatedDevice:
        model = self._models.get(self._specs[domain_id].kind, self._model)
        return SimulatedDevice(domain_id, model, sigma=self._sigma, drift=self._drift, seed=self._seed + deaths)


def rotated_blocks(plan: StepPlan) -> int:
    """KV blocks that a plan copies between device and host."""
    return sum(len(rotation.pairs) for rotation in (*plan.rotate_out, *plan.rotate_in))


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """No cyclic garbage collection meanwhile: the loop's objects die by reference count, and walking the many that
    live takes time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
