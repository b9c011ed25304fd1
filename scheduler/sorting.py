"""Sorting by two keys and an id inside compiled loops."""

from __future__ import annotations

from superinfer.scheduler.columns import FloatArray, IntArray
from superinfer.scheduler.kernels import compiled


@compiled
def comes_first(first: FloatArray, second: FloatArray, ids: IntArray, one: int, other: int) -> bool:
    """Whether one entry sorts before another: by `first`, then `second`, then id."""
    if first[one] != first[other]:
        return first[one] < first[other]
    if second[one] != second[other]:
        return second[one] < second[other]
    return ids[one] < ids[other]


@compiled
def sort_entries(first: FloatArray, second: FloatArray, ids: IntArray, entries: IntArray, spare: IntArray) -> None:
    """Sort `entries` in place by merging ever longer runs; `spare` is as long."""
    length, run = len(entries), 1
    while run < length:
        for low in range(0, length, 2 * run):
            middle, high = min(low + run, length), min(low + 2 * run, length)
            if middle >= high or not comes_first(first, second, ids, entries[middle], entries[middle - 1]):
                spare[low:high] = entries[low:high]
                continue
            i, j = low, middle
            for k in range(low, high):
                if j >= high or (i < middle and not comes_first(first, second, ids, entries[j], entries[i])):
                    spare[k] = entries[i]
                    i += 1
                else:
                    spare[k] = entries[j]
                    j += 1
        entries[:] = spare
        run *= 2
