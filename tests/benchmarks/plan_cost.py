"""What a step costs in the scheduler, and adding a request, with 256 requests running and many waiting.

    python tests/benchmarks/plan_cost.py [--policy slack fcfs] [--waiting 10000 100000] [--steps 300]
        [--contracts 2] [--admission accept] [--unequal] [--json]

The load is mixed and too much for the device, as it is when planning is slowest: seven tight requests to three loose
ones, most of the tight ones running. Figures are CPU time of the thread, which other work on the machine hardly
changes; garbage collection is left on, as in the engine. With `--unequal` the domain is the slower of two kinds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from superinfer.contracts.contract import Bound, SLOContract
from superinfer.executor.simulated import SimulatedDevice
from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.config import DomainSpec, SchedulerConfig
from superinfer.scheduler.domain_kind import DomainKind
from superinfer.scheduler.request import Request, SamplingParams
from superinfer.scheduler.scheduler import Scheduler

RUNNING = 256
DOMAIN = "domain-0"


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds."""

    policy: str
    contracts: int
    admission: str
    running: int
    waiting: int
    plan_median_us: float
    plan_p99_us: float
    add_median_us: float
    add_p99_us: float
    observe_median_us: float
    observe_p99_us: float
    execute_median_us: float
    execute_p99_us: float


def make_model(factor: float = 1.0) -> LatencyModel:
    """About what a large GPU takes, or a share of that."""
    points = [(1.0, 0.005), (8.0, 0.0052), (64.0, 0.006), (256.0, 0.009), (1024.0, 0.03)]
    return LatencyModel(
        launch_s=0.002,
        linear_points=[(tokens, factor * seconds) for tokens, seconds in points],
        decode_context_s=5e-9,
        decode_s=1e-6,
        prefill_pair_s=1e-10,
        chunk_s=2e-5,
        row_s=1e-6,
    )


def make_contracts(count: int) -> list[SLOContract]:
    """One tight contract, and loose ones that allow ever more."""
    bounds_ms = [30_000.0, *(400_000.0 + 50_000.0 * number for number in range(count - 1))]
    return [SLOContract(service_id=f"c{i}", latency=(Bound(0.99, bound_ms),)) for i, bound_ms in enumerate(bounds_ms)]


def make_request(number: int, now: float, contracts: int) -> Request:
    is_tight = number % 10 < 7
    return Request(
        request_id=str(number),
        contract_id="c0" if is_tight else f"c{1 + number % (contracts - 1)}",
        prompt_token_ids=[1] * (64 if is_tight else 256),
        sampling=SamplingParams(max_tokens=1000 + number % 64, ignore_eos=True),
        arrival_s=now,
    )


def measure(
    policy: str,
    waiting: int,
    steps: int,
    contracts: int = 2,
    admission: Literal["accept", "refuse"] = "accept",
    *,
    unequal: bool = False,
) -> Cost:
    """Fill the device, offer as many as are to wait, and time the steps that follow."""
    model = make_model()
    domains, kinds = [DomainSpec(DOMAIN, 40_000)], []
    if unequal:
        domains = [DomainSpec(DOMAIN, 40_000, kind="slow"), DomainSpec("other", 40_000, kind="fast")]
        kinds = [DomainKind("slow", model), DomainKind("fast", make_model(0.5))]
    scheduler = Scheduler(
        domains=domains,
        kinds=kinds,
        contracts=make_contracts(contracts),
        latency_model=model,
        config=SchedulerConfig(
            policy=policy, max_step_tokens=1024, max_running=RUNNING, max_model_len=4096, admission=admission
        ),
    )
    device = SimulatedDevice(DOMAIN, model.fresh(), sigma=0.05)
    now, number = 0.0, 0

    def add() -> float:
        nonlocal number
        request = make_request(number, now, contracts)
        number += 1
        started = time.thread_time()
        scheduler.add(request, now)
        return time.thread_time() - started

    def step() -> tuple[float, float, float]:
        """Seconds to plan, to observe and to execute."""
        nonlocal now
        started = time.thread_time()
        plan = scheduler.plan(DOMAIN, now)
        planned = time.thread_time()
        assert plan is not None
        device.now = now
        result = device.execute(plan)
        executed = time.thread_time()
        now = result.finished_s
        scheduler.observe(result, now)
        return planned - started, time.thread_time() - executed, executed - planned

    while scheduler.stats(now).running < RUNNING:
        add()
        step()
    while scheduler.stats(now).waiting:
        scheduler.abort(next(iter(scheduler.queues.heads())).request.request_id, now)
    adds = [add() for _ in range(waiting)]
    for _ in range(10):
        step()
    plans, observes, executes = zip(*(step() for _ in range(steps)), strict=True)
    stats = scheduler.stats(now)
    figures = [figure for times_s in (plans, adds, observes, executes) for figure in _figures(times_s)]
    return Cost(policy, contracts, admission, stats.running, stats.waiting, *figures)


def _figures(times_s: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(times_s)
    return statistics.median(ordered) * 1e6, ordered[int(0.99 * (len(ordered) - 1))] * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", nargs="+", default=["slack", "fcfs"])
    parser.add_argument("--waiting", nargs="+", type=int, default=[10_000, 100_000])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--contracts", type=int, default=2, help="at least 2: a tight one and looser ones")
    parser.add_argument("--admission", choices=["accept", "refuse"], default="accept")
    parser.add_argument("--unequal", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    costs = [
        measure(policy, waiting, options.steps, options.contracts, options.admission, unequal=options.unequal)
        for policy in options.policy
        for waiting in options.waiting
    ]
    if options.json:
        print(json.dumps([asdict(cost) for cost in costs], indent=2))
        return
    for cost in costs:
        print(
            f"{cost.policy:>12}  {cost.contracts} contracts, {cost.admission}: "
            f"{cost.running} running + {cost.waiting:,} waiting: "
            f"plan {cost.plan_median_us:,.0f} µs median, {cost.plan_p99_us:,.0f} µs p99; "
            f"add {cost.add_median_us:,.0f}, {cost.add_p99_us:,.0f}; "
            f"observe {cost.observe_median_us:,.0f}, {cost.observe_p99_us:,.0f}; "
            f"the simulated device {cost.execute_median_us:,.0f}, {cost.execute_p99_us:,.0f}"
        )


if __name__ == "__main__":
    main()
