"""Which jobs to give up when not all can meet their deadlines.

Moore (1968), "An n job, one machine sequencing algorithm for minimizing the number of late jobs", with Hodgson's
rule: go through the jobs in deadline order; whenever one would be late, drop the longest taken so far. The number
of late jobs is minimal.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def split_feasible(jobs: Sequence[tuple[float, float]]) -> tuple[list[int], list[int]]:
    """Indices of jobs to keep and to give up, each in deadline order; a job is (time to deadline, work), in seconds."""
    order = sorted(range(len(jobs)), key=lambda i: (jobs[i][0], i))
    longest: list[tuple[float, int]] = []
    total = 0.0
    dropped: set[int] = set()
    for i in order:
        deadline, work = jobs[i]
        heapq.heappush(longest, (-work, i))
        total += work
        while longest and total > deadline:
            negative_work, worst = heapq.heappop(longest)
            total += negative_work
            dropped.add(worst)
            if worst == i:
                break
    return [i for i in order if i not in dropped], [i for i in order if i in dropped]
