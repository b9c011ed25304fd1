"""The event loop that takes one step after the other, each planned, executed and observed as a server does it: what the
faster loop is measured against, and what runs where that one does not apply.
"""

from __future__ import annotations

from superinfer.executor.simulation.events import Event, EventLoop, Hardware, PlanDue, Return, StepEnd
from superinfer.scheduler.scheduler import Scheduler


class StepLoop(EventLoop):
    """A domain plans its next step when the last one has ended, once all that is due at that time has happened; or
    `lead_s` before it is expected to end.
    """

    def __init__(self, scheduler: Scheduler, hardware: Hardware, lead_s: float | None = None) -> None:
        super().__init__(scheduler, hardware)
        self._lead_s = lead_s
        self._idle = dict.fromkeys(hardware.specs)
        self._busy_until_s = dict.fromkeys(hardware.specs, 0.0)

    def work(self, due_s: float) -> None:
        """A step for each domain that has none in flight and something to do. Where domains are unequal, what one
        leaves may be for another that has been asked before.
        """
        if min(self.feed.next_s, due_s) <= self.now or not self._idle:
            return
        while self._plan_each() and self.scheduler.placement is not None and self._idle:
            pass

    def _plan_each(self) -> bool:
        """One round in the order of the domains; whether there was a step."""
        scheduler, hardware, idle = self.scheduler, self.hardware, len(self._idle)
        for domain_id in [d for d in hardware.specs if d in self._idle] if len(self._idle) > 1 else list(self._idle):
            if not scheduler.has_work(domain_id):
                continue
            plan = scheduler.plan(domain_id, self.now)
            if plan is None:
                continue
            del self._idle[domain_id]
            self.steps += 1
            if domain_id in self.dead:
                continue
            device, deaths = self.devices[domain_id], self.deaths[domain_id]
            device.now = max(self.now, self._busy_until_s[domain_id]) + hardware.overhead_s
            result = device.execute(plan)
            result.finished_s += hardware.copies_take_s(domain_id, plan)
            self._busy_until_s[domain_id] = result.finished_s
            self.push(result.finished_s, StepEnd(result, deaths))
            if self._lead_s is not None:
                expected_s = result.started_s + max(plan.predicted_s - self._lead_s, 0.0)
                self.push(min(expected_s, result.finished_s), PlanDue(domain_id, deaths))
        return len(self._idle) < idle

    def handle(self, event: Event) -> None:
        """The end of a step, or what has to do with faults."""
        super().handle(event)
        if isinstance(event, Return):
            domain_id = event.record.fault.domain_id
            self._busy_until_s[domain_id] = self.now
            self._idle[domain_id] = None
        elif isinstance(event, PlanDue) and event.deaths == self.deaths[event.domain_id]:
            self._idle[event.domain_id] = None
        elif isinstance(event, StepEnd) and event.deaths == self.deaths[event.result.domain_id]:
            if self._lead_s is None:
                self._idle[event.result.domain_id] = None
            self.note(self.scheduler.observe(event.result, self.now))
