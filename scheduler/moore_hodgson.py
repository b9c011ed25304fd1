"""Which jobs to give up when not all can meet their deadlines.

Moore (1968), "An n job, one machine sequencing algorithm for minimizing the number of late jobs", with Hodgson's
rule: go through the jobs in deadline order; whenever one would be late, drop the longest taken so far. The number
of late jobs is minimal.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from superinfer.scheduler.columns import FloatArray, IntArray
from superinfer.scheduler.kernels import compiled
from superinfer.scheduler.sorting import sort_entries


def split_feasible(time_left_s: FloatArray, work_s: FloatArray, ids: IntArray) -> tuple[IntArray, int]:
    """Indices of the jobs to keep, then of those to give up, each with the least work first and equals by id; and how
    many are kept. A job has a time to its deadline and work, both in seconds.
    """
    order = np.empty(len(ids), np.int64)
    return order, split_jobs(time_left_s, work_s, ids, order)


@compiled
def split_jobs(time_left_s: FloatArray, work_s: FloatArray, ids: IntArray, order: IntArray) -> int:
    """`split_feasible`, into `order`."""
    length = len(order)
    places, spare = np.arange(length), np.empty(length, np.int64)
    for i in range(length):
        order[i] = i
    sort_entries(time_left_s, time_left_s, places, order, spare)
    is_dropped = drop_longest(order, time_left_s, work_s)
    kept, dropped = 0, length
    for i in range(length):
        if is_dropped[i]:
            dropped -= 1
            order[dropped] = i
        else:
            order[kept] = i
            kept += 1
    sort_entries(work_s, work_s, ids, order[:kept], spare[:kept])
    sort_entries(work_s, work_s, ids, order[kept:], spare[kept:])
    return kept


@compiled
def drop_longest(order: IntArray, time_left_s: FloatArray, work_s: FloatArray) -> npt.NDArray[np.bool_]:
    """Which jobs Hodgson's rule drops. Those taken lie in a binary heap, the longest on top; of equals the first."""
    is_dropped = np.zeros(len(order), np.bool_)
    heap = np.empty(len(order), np.int64)
    size = 0
    total = 0.0
    for job in order:
        work, place = work_s[job], size
        size += 1
        while place:
            parent = (place - 1) >> 1
            above = heap[parent]
            if not is_longer(work, work_s[above], job, above):
                break
            heap[place] = above
            place = parent
        heap[place] = job
        total += work
        while size and total > time_left_s[job]:
            worst = heap[0]
            size -= 1
            last, place = heap[size], 0
            while 2 * place + 1 < size:
                child = 2 * place + 1
                one, other = heap[child], heap[min(child + 1, size - 1)]
                if is_longer(work_s[other], work_s[one], other, one):
                    child, one = child + 1, other
                if not is_longer(work_s[one], work_s[last], one, last):
                    break
                heap[place] = one
                place = child
            heap[place] = last
            total -= work_s[worst]
            is_dropped[worst] = True
            if worst == job:
                break
    return is_dropped


@compiled
def is_longer(work_s: float, other_s: float, job: int, other: int) -> bool:
    """Whether a job is dropped before another."""
    return work_s > other_s or (work_s == other_s and job < other)
