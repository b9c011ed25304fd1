"""Live placement beside an exact program, on instances small enough for one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from unequal import contract, kind, model, request

from superinfer.executor.simulation.loop import simulate
from superinfer.scheduler.config import DomainSpec, SchedulerConfig

SLOW = 2.5
BOUNDS_MS = (150.0, 250.0, 500.0, 900.0, 1500.0)


@dataclass(frozen=True)
class Job:
    """One request that is there from the start: its bound, and what it takes alone on each domain."""

    bound_s: float
    prompt: int
    outputs: int
    seconds: tuple[float, ...]


def instance(seed: int) -> tuple[list[Job], list[str]]:
    """Three to eight requests for one fast domain and one or two slow ones, each of which runs one at a time."""
    draw = random.Random(seed)
    domains = ["fast", *["slow"] * draw.randint(1, 2)]
    draw.shuffle(domains)
    models = {"fast": model(), "slow": model(SLOW)}
    jobs = []
    for _ in range(draw.randint(3, 8)):
        prompt, outputs = draw.choice([20, 50, 100]), draw.choice([2, 5, 10])
        seconds = tuple(models[name].unloaded_s(prompt, outputs) for name in domains)
        jobs.append(Job(draw.choice(BOUNDS_MS) / 1e3, prompt, outputs, seconds))
    return jobs, domains


def most_in_time(jobs: Sequence[Job]) -> int:
    """How many can end in time at most: on each domain those chosen run by deadline, which is the best order."""
    count, domains = len(jobs), len(jobs[0].seconds)
    late = sum(max(job.seconds) for job in jobs)
    rows, high = [], []
    for j, job in enumerate(jobs):
        row = np.zeros((count, domains))
        row[j] = 1.0
        rows.append(row)
        high.append(1.0)
        for m in range(domains):
            row = np.zeros((count, domains))
            for i, other in enumerate(jobs):
                if (other.bound_s, i) <= (job.bound_s, j):
                    row[i, m] = other.seconds[m]
            row[j, m] += late
            rows.append(row)
            high.append(job.bound_s + late)
    result = milp(
        -np.ones(count * domains),
        constraints=LinearConstraint(np.array([row.reshape(-1) for row in rows]), -np.inf, np.array(high)),
        bounds=Bounds(0, 1),
        integrality=np.ones(count * domains),
    )
    return round(-result.fun)


def in_time(jobs: Sequence[Job], domains: Sequence[str], placement: str) -> int:
    """How many the scheduler ends in time."""
    contracts = [contract(f"c{bound:g}", bound) for bound in BOUNDS_MS]
    requests = [
        request(str(n), f"c{job.bound_s * 1e3:g}", prompt=job.prompt, outputs=job.outputs) for n, job in enumerate(jobs)
    ]
    result = simulate(
        requests,
        contracts=contracts,
        model=model(),
        config=SchedulerConfig(max_running=1, placement=placement),  # type: ignore[arg-type]
        domains=[DomainSpec(f"{name}-{n}", 100, kind=name) for n, name in enumerate(domains)],
        kinds=[kind("fast", 1.0), kind("slow", SLOW)],
    )
    return sum(map(bool, result.requests.met))


def test_live_placement_ends_nearly_as_many_in_time_as_an_exact_program_and_more_than_plain_pull() -> None:
    exact = placed = pulled = 0
    for seed in range(40):
        jobs, domains = instance(seed)
        best = most_in_time(jobs)
        here = in_time(jobs, domains, "headroom")
        assert here <= best
        exact, placed, pulled = exact + best, placed + here, pulled + in_time(jobs, domains, "pull")
    assert placed > pulled
    assert placed >= 0.93 * exact
