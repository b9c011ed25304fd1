"""Simulate a cluster: requests in, their fates out.

Every figure that comes from here is a simulated one and has to be labelled so.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from superinfer.contracts.contract import SLOContract
from superinfer.executor.simulation.events import Death, EventLoop, Hardware
from superinfer.executor.simulation.fates import Fates
from superinfer.executor.simulation.faults import DomainFault, FaultRecord
from superinfer.executor.simulation.fleet import FleetLoop, can_take_many
from superinfer.executor.simulation.step_loop import StepLoop
from superinfer.profiler.drift import Drift
from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.config import DomainSpec, SchedulerConfig
from superinfer.scheduler.domain_kind import DomainKind
from superinfer.scheduler.policies.base import Policy
from superinfer.scheduler.request import Request
from superinfer.scheduler.scheduler import Scheduler


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


def simulate(
    requests: Iterable[Request],
    *,
    contracts: list[SLOContract],
    model: LatencyModel,
    device_model: LatencyModel | None = None,
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
    whole step more. Then each step is taken by itself, as it is where the devices' speed has a `drift` or they take
    another time than the scheduler is told at first (`device_model`).
    `domains` are specs, or a number of domains of `kv_blocks` each; `overhead_s` is the gap between steps, and
    `block_copy_s` the time that each rotated KV block adds to the step before which it is copied. With
    `fast_forward` a compiled loop takes the steps that need none of the scheduler's objects, with the same result.
    `on_progress` gets the number of requests that have arrived, and the virtual time.

    Where domains are unequal `kinds` are theirs, each with its latency model, and `copies_s` is `block_copy_s` by kind.
    Then each step is taken by itself, too.
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
    by_id = {spec.domain_id: spec for spec in specs}
    models = {kind.kind_id: kind.latency_model for kind in kinds}
    device = device_model or model
    hardware = Hardware(by_id, device, models, sigma, drift, seed, overhead_s, block_copy_s, copies_s or {})
    is_as_told = lead_s is None and drift is None and device_model is None
    takes_many = fast_forward and is_as_told and can_take_many(scheduler, specs)
    loop: EventLoop = FleetLoop(scheduler, hardware) if takes_many else StepLoop(scheduler, hardware, lead_s)
    for fault in faults:
        loop.push(fault.time_s, Death(fault))
    ordered = sorted(requests, key=lambda r: r.arrival_s) if isinstance(requests, list) else requests
    with _no_collection():
        loop.run(iter(ordered), on_progress)
    return Simulation(loop.fates, loop.last_end_s, loop.steps, loop.records)


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
