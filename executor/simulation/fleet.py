"""The event loop that takes many steps at once: a compiled loop plans and ends the steps of all domains in the order of
their times, and comes back for what is the scheduler's own: arrivals, ends, and plans in which sequences give way.

Whenever it is back, the scheduler's tables are what single steps would have left; its objects are brought up to them
before anybody looks. So the result is that of single steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from superinfer.executor.simulation import fleet_state as of
from superinfer.executor.simulation.events import (
    Detection,
    Event,
    EventLoop,
    Hardware,
    LostStepEnd,
    Return,
)
from superinfer.executor.simulation.fleet_ground import FleetGround
from superinfer.executor.simulation.fleet_loop import advance
from superinfer.executor.simulation.light_requests import LightRequests
from superinfer.profiler.latency_model import StepShape
from superinfer.scheduler.columns import BLOCKS
from superinfer.scheduler.config import DomainSpec
from superinfer.scheduler.domain import Batch, InFlightStep
from superinfer.scheduler.policies.slack import SlackPolicy
from superinfer.scheduler.request import Request
from superinfer.scheduler.scheduler import Scheduler
from superinfer.scheduler.step_memory import enter


def can_take_many(scheduler: Scheduler, specs: Iterable[DomainSpec]) -> bool:
    """Whether steps need but tables: equal domains, no reserved bandwidth, no memory that domains or prompts share."""
    config = scheduler.config
    is_plain = config.save_interval_s is None and not config.prefix_cache and not scheduler.bandwidth.is_used
    return is_plain and scheduler.placement is None and all(spec.segment is None for spec in specs)


class FleetLoop(EventLoop):
    """The scheduler's side of the compiled loop."""

    def __init__(self, scheduler: Scheduler, hardware: Hardware) -> None:
        super().__init__(scheduler, hardware)
        self._ids = list(hardware.specs)
        self._ground = FleetGround(scheduler, self._ids, hardware.overhead_s)
        self._asked: dict[str, InFlightStep] = {}
        self._light = LightRequests(self, self._ground, self._ids)

    def work(self, due_s: float) -> None:
        """Run the compiled loop until the next arrival that it cannot take in, or what is due."""
        ground, light = self._ground, self._light
        ground.clock[of.NOW] = self.now
        ground.look()
        light.begin()
        while True:
            horizon_s = min(self.feed.next_s, due_s)
            reason = advance(ground.fleet, ground.step, horizon_s)
            self.now = float(ground.clock[of.NOW])
            self._tell_entries()
            number = int(ground.shared[of.DOMAIN])
            if reason == of.AT_HORIZON:
                break
            if reason == of.MUST_PLAN:
                if light.is_on:
                    self._end_light(has_planned=True)
                self._plan(number)
            elif reason == of.NEEDS_ARRIVALS:
                light.refill()
            elif reason == of.HAS_ENDED:
                self._end(number)
            elif reason == of.NEEDS_NOISE:
                ground.fleet.noise[number] = self.devices[self._ids[number]].next_noise()
                ground.fleet.domains[number, of.NOISE_USED] = 0
            elif reason == of.NEEDS_WAITING:
                ground.show_waiting(self.now)
            else:
                self._tell_all()
                if light.is_on:
                    light.make_room()
        if light.is_on:
            self._end_light(has_planned=False)
        if horizon_s == math.inf:
            self._tell_all()

    def _end_light(self, *, has_planned: bool) -> None:
        """The scheduler's objects are needed of all requests."""
        self._tell_all()
        self._light.end(has_planned=has_planned)
        self._ground.show_waiting(self.now)

    def arrive(self, request: Request) -> None:
        """A request comes now."""
        admitted = self.scheduler.queues.count
        super().arrive(request)
        self._light.arrived()
        if self.scheduler.queues.count > admitted:
            self._ground.show_arrival(request.contract_id, self.now)
            self._ground.show_waiting(self.now)

    def handle(self, event: Event) -> None:
        """What has to do with faults."""
        if isinstance(event, Detection):
            self._tell_all()
        super().handle(event)
        ground = self._ground
        if isinstance(event, Detection):
            ground.show_domain(self._ids.index(event.record.fault.domain_id), of.DOWN)
        elif isinstance(event, Return):
            number = self._ids.index(event.record.fault.domain_id)
            ground.show_domain(number, of.COMPILED)
            ground.fleet.domains[number, of.IS_IDLE] = 1
            ground.fleet.domains[number, of.NOISE_USED] = ground.fleet.noise.shape[1]
        ground.show_waiting(self.now)

    def died(self, domain_id: str) -> None:
        """The step in flight becomes one that the scheduler knows, and waits for in vain."""
        number = self._ids.index(domain_id)
        self._tell(number)
        its = self._ground.fleet.domains[number]
        its[of.MODE] = of.ASKS
        if its[of.IS_FLYING]:
            self.push(float(self._ground.fleet.flights[number, of.END_S]), LostStepEnd())
            step = self._asked[domain_id] if its[of.IS_ASKED] else self._in_flight(number)
            self.scheduler.domains[domain_id].in_flight[step.step_id] = step
            its[of.IS_FLYING] = its[of.IS_ASKED] = 0

    def _plan(self, number: int) -> None:
        """The scheduler plans the next step of a domain."""
        ground, scheduler, domain_id = self._ground, self.scheduler, self._ids[number]
        its = ground.fleet.domains[number]
        self._tell(number)
        plan = scheduler.plan(domain_id, self.now) if scheduler.has_work(domain_id) else None
        ground.show_domain(number)
        ground.show_waiting(self.now)
        if plan is None:
            ground.shared[of.FROM] += 1
            return
        if domain_id in self.dead:
            self.steps += 1
            its[of.IS_IDLE] = 0
            ground.shared[of.FROM] += 1
            return
        step = self._asked[domain_id] = scheduler.domains[domain_id].in_flight.pop(plan.step_id)
        # The plan has been counted already.
        its[of.STEPS] -= 1
        self.steps += 1
        ground.show_step(number, step)
        ground.fleet.flights[number, of.MORE_S] = self.hardware.copies_take_s(domain_id, plan)

    def _end(self, number: int) -> None:
        """Sequences end with the step of a domain that has just ended."""
        ground, scheduler = self._ground, self.scheduler
        self._tell(number)
        ended = ground.fleet.ended[: ground.shared[of.ENDED]]
        blocks, its = int(scheduler.table.counts[ended, BLOCKS].sum()), ground.fleet.domains[number]
        free = int(its[of.FREE]) + blocks
        self.note(scheduler.completed(scheduler.table.sequences(ended), self.now))
        ground.show_ends(number)
        if self._light.is_on:
            # Its pool does not know of those blocks that are held by requests without objects.
            its[of.FREE], its[of.HAS_FINISHED] = free, 1

    def _tell_entries(self) -> None:
        """Who has entered, and who has had a first token, since the scheduler was last told."""
        fleet, shared, table = self._ground.fleet, self._ground.shared, self.scheduler.table
        if entered := shared[of.ENTERED]:
            shared[of.ENTERED] = 0
            size, queues = self.scheduler.config.block_size, self.scheduler.queues
            times_s = fleet.entered_s[:entered].tolist()
            for (row, number), time_s in zip(fleet.entered[:entered].tolist(), times_s, strict=True):
                sequence, domain = table.owners[row], self.scheduler.domains[self._ids[number]]
                assert sequence is not None
                blocks = domain.device_blocks.take(-(-(sequence.prefill_target + 1) // size))
                assert blocks is not None, "who enters has its blocks"
                sequence.blocks.extend(blocks)
                enter(sequence, domain, queues, time_s)
        if begun := shared[of.BEGUN]:
            shared[of.BEGUN] = 0
            for row, time_s in zip(fleet.begun[:begun].tolist(), fleet.begun_s[:begun].tolist(), strict=True):
                sequence = table.owners[row]
                assert sequence is not None
                sequence.enter_stage("decode", time_s)

    def _tell_all(self) -> None:
        for number in range(len(self._ids)):
            self._tell(number)

    def _tell(self, number: int) -> None:
        """What a domain has done since the scheduler was last told: blocks taken, steps and tokens counted."""
        fleet, scheduler, domain_id = self._ground.fleet, self.scheduler, self._ids[number]
        domain, its = scheduler.domains[domain_id], fleet.domains[number]
        if grown := int(its[of.GROWN]):
            blocks = domain.device_blocks.take(grown)
            assert blocks is not None, "who grows has its blocks"
            for sequence, block in zip(scheduler.table.sequences(fleet.growing[number, :grown]), blocks, strict=True):
                sequence.blocks.append(block)
            its[of.GROWN] = 0
        if domain.finished and not its[of.HAS_FINISHED]:
            domain.finished = []
        steps = int(its[of.STEPS])
        self.steps += steps
        scheduler.skipped(domain_id, steps, int(its[of.OUTPUTS]))
        its[of.STEPS] = its[of.OUTPUTS] = 0
        if its[of.IS_SERVED]:
            its[of.IS_SERVED] = 0
            if isinstance(scheduler.policy, SlackPolicy):
                scheduler.policy.served(domain_id)

    def _in_flight(self, number: int) -> InFlightStep:
        """The step of a domain that the compiled loop planned, as the scheduler would know it."""
        fleet, table = self._ground.fleet, self.scheduler.table
        its = fleet.domains[number]
        chunks = fleet.chunks[number, : its[of.CHUNKS]]
        ends = chunks[:, of.START] + chunks[:, of.COUNT]
        return InFlightStep(
            self.scheduler.domains[self._ids[number]].next_step_id - 1,
            StepShape(*(int(its[each]) for each in (of.TOKENS, of.DECODES, of.CONTEXT))),
            Batch.of(table, np.sort(fleet.chosen[number, : its[of.DECODES]])),
            table.sequences(chunks[:, of.ROW]),
            chunks[:, of.START].tolist(),
            ends.tolist(),
            [],
            [],
            [],
            {},
        )
