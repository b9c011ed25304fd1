"""Sorting by two keys and an id inside compiled loops."""

from __future__ import annotations

from superinfer.scheduler.columns import FloatArray, IntArray
from superinfer.scheduler.kernels import compiled

RUN = 16
"""Entries that are sorted by insertion: what is nearly in order already, as it mostly is, costs one comparison each."""


@compiled
def comes_first(one: float, other: float, one_then: float, other_then: float, one_id: int, other_id: int) -> bool:
    """Whether one entry sorts before another: by the first key, then the second, then the id."""
    if one != other:
        return one < other
    if one_then != other_then:
        return one_then < other_then
    return one_id < other_id


@compiled
def sort_entries(first: FloatArray, second: FloatArray, ids: IntArray, entries: IntArray, spare: IntArray) -> None:
    """Sort `entries` in place: short runs by insertion, then merging ever longer ones; `spare` is as long."""
    length = len(entries)
    for begin in range(0, length, RUN):
        for position in range(begin + 1, min(begin + RUN, length)):
            entry, place = entries[position], position
            while place > begin:
                above = entries[place - 1]
                if not comes_first(first[entry], first[above], second[entry], second[above], ids[entry], ids[above]):
                    break
                entries[place] = above
                place -= 1
            entries[place] = entry
    run = RUN
    while run < length:
        for low in range(0, length, 2 * run):
            merge_runs(first, second, ids, entries, spare, low, min(low + run, length), min(low + 2 * run, length))
        run *= 2


@compiled
def merge_runs(
    first: FloatArray,
    second: FloatArray,
    ids: IntArray,
    entries: IntArray,
    spare: IntArray,
    low: int,
    middle: int,
    high: int,
) -> None:
    """Merge the sorted entries from `low` to `middle` with those from there to `high`."""
    if middle >= high:
        return
    one, other = entries[middle], entries[middle - 1]
    if not comes_first(first[one], first[other], second[one], second[other], ids[one], ids[other]):
        return
    for k in range(low, middle):
        spare[k] = entries[k]
    i, j, k = low, middle, low
    while i < middle and j < high:
        one, other = entries[j], spare[i]
        if comes_first(first[one], first[other], second[one], second[other], ids[one], ids[other]):
            entries[k] = one
            j += 1
        else:
            entries[k] = other
            i += 1
        k += 1
    while i < middle:
        entries[k] = spare[i]
        i += 1
        k += 1
