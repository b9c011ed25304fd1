"""What two event loops have in common, one that takes step by step and one that takes many at once: the clock, what is
due, faults, and what becomes of requests.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from superinfer.executor.simulated import SimulatedDevice
from superinfer.executor.simulation.fates import Fates
from superinfer.executor.simulation.faults import DomainFault, FaultRecord
from superinfer.executor.simulation.feed import Feed
from superinfer.profiler.drift import Drift
from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.config import DomainSpec
from superinfer.scheduler.outputs import FinishOutput, Output
from superinfer.scheduler.request import Request
from superinfer.scheduler.scheduler import Scheduler
from superinfer.scheduler.steps import StepPlan, StepResult

PROGRESS_EVERY = 2000
"""Requests between two calls of `on_progress`."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """What the domains of a simulation are: their model, or that of their kind, its noise, the gap between steps, the
    time that each rotated block takes, or takes of their kind.
    """

    specs: Mapping[str, DomainSpec]
    model: LatencyModel
    models: Mapping[str, LatencyModel]
    sigma: float
    drift: Drift | None
    seed: int
    overhead_s: float
    block_copy_s: float
    copies_s: Mapping[str, float]

    def device(self, domain_id: str, deaths: int) -> SimulatedDevice:
        """The device of a domain that has died so many times."""
        model = self.models.get(self.specs[domain_id].kind, self.model)
        return SimulatedDevice(domain_id, model, sigma=self.sigma, drift=self.drift, seed=self.seed + deaths)

    def copies_take_s(self, domain_id: str, plan: StepPlan) -> float:
        """What the blocks that a plan copies between device and host add to its step."""
        blocks = sum(len(rotation.pairs) for rotation in (*plan.rotate_out, *plan.rotate_in))
        return blocks * self.copies_s.get(self.specs[domain_id].kind, self.block_copy_s) if blocks else 0.0


@dataclass(frozen=True, slots=True)
class StepEnd:
    """The end of a step on a domain that has died `deaths` times before."""

    result: StepResult
    deaths: int


@dataclass(frozen=True, slots=True)
class PlanDue:
    """A domain that has died `deaths` times before may be told its next step."""

    domain_id: str
    deaths: int


@dataclass(frozen=True, slots=True)
class LostStepEnd:
    """When a step would have ended whose domain has died."""


@dataclass(frozen=True, slots=True)
class Death:
    """A domain dies."""

    fault: DomainFault


@dataclass(frozen=True, slots=True)
class Detection:
    """The scheduler learns of it."""

    record: FaultRecord


@dataclass(frozen=True, slots=True)
class Return:
    """The domain serves again."""

    record: FaultRecord


Event = StepEnd | PlanDue | LostStepEnd | Death | Detection | Return


class EventLoop:
    """Events in the order of their times. Subclasses run the steps of the domains that are not dead."""

    def __init__(self, scheduler: Scheduler, hardware: Hardware) -> None:
        self.scheduler = scheduler
        self.hardware = hardware
        self.now = 0.0
        self.last_end_s = 0.0
        self.steps = 0
        self.fates = Fates()
        self.records: list[FaultRecord] = []
        self.dead: set[str] = set()
        self.deaths = dict.fromkeys(hardware.specs, 0)
        self.devices = {domain_id: hardware.device(domain_id, 0) for domain_id in hardware.specs}
        self.feed = Feed(iter(()))
        self.arrived = 0
        self._on_progress: Callable[[int, float], None] = lambda done, now: None
        self._order = itertools.count()
        self.events: list[tuple[float, int, Event]] = []

    def push(self, time_s: float, event: Event) -> None:
        """Something is due at a time; what is due at the same time happens in the order in which it was pushed."""
        heapq.heappush(self.events, (time_s, next(self._order), event))

    def run(self, arrivals: Iterator[Request], on_progress: Callable[[int, float], None]) -> None:
        """Until nothing is due any more. An arrival goes before what is due at the same time."""
        self.feed, self._on_progress = Feed(arrivals), on_progress
        feed, events = self.feed, self.events
        while True:
            self.work(events[0][0] if events else math.inf)
            request = feed.peek()
            if request is not None and (not events or request.arrival_s <= events[0][0]):
                if request.arrival_s < self.now:
                    raise ValueError(f"request {request.request_id} arrives at {request.arrival_s}, before {self.now}")
                self.now = request.arrival_s
                self.arrive(feed.pop())
                self.have_arrived(1)
            elif events:
                self.now, _, event = heapq.heappop(events)
                self.handle(event)
            else:
                break
        self.fates.left_open(self.scheduler.open_sequences)

    def have_arrived(self, requests: int) -> None:
        """So many more have arrived, the last of them now; not more than PROGRESS_EVERY at once."""
        before, self.arrived = self.arrived, self.arrived + requests
        if self.arrived // PROGRESS_EVERY > before // PROGRESS_EVERY:
            self._on_progress(self.arrived, self.now)

    def work(self, due_s: float) -> None:
        """Let the domains do what they can before the next request arrives, or something is due at `due_s` (infinite
        where nothing is).
        """
        raise NotImplementedError

    def arrive(self, request: Request) -> None:
        """A request comes now."""
        self.fates.arrived(request)
        refusal = self.scheduler.add(request, self.now)
        if refusal is not None:
            self.fates.refused(request.request_id, refusal.message)

    def handle(self, event: Event) -> None:
        """Something that was due happens now."""
        if isinstance(event, Death):
            self._die(event.fault)
        elif isinstance(event, Detection):
            record = event.record
            record.detected_s = self.now
            record.moved_requests, ended = self.scheduler.domain_failed(record.fault.domain_id, self.now)
            self.note(ended)
        elif isinstance(event, Return):
            self._return(event.record)

    def died(self, domain_id: str) -> None:
        """A domain has died with its step in flight; the scheduler does not know yet."""

    def note(self, outputs: Iterable[Output]) -> None:
        """Whoever ended did so now."""
        for output in outputs:
            if isinstance(output, FinishOutput):
                self.fates.finished(output, self.now)
                self.last_end_s = self.now

    def _die(self, fault: DomainFault) -> None:
        """The domain's step in flight is lost; a domain that is down already is left alone."""
        domain_id = fault.domain_id
        if domain_id in self.dead:
            return
        self.dead.add(domain_id)
        self.deaths[domain_id] += 1
        record = FaultRecord(fault, 0, self.fates.open_rows)
        self.records.append(record)
        self.push(self.now + fault.detection_s, Detection(record))
        self.push(self.now + max(fault.restart_s, fault.detection_s), Return(record))
        self.died(domain_id)

    def _return(self, record: FaultRecord) -> None:
        domain_id = record.fault.domain_id
        record.ready_s = self.now
        self.dead.discard(domain_id)
        self.devices[domain_id] = self.hardware.device(domain_id, self.deaths[domain_id])
        self.scheduler.domain_ready(self.hardware.specs[domain_id], self.now)
