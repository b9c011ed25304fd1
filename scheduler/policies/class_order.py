"""Who is in a class and in which order they are served, as compiled loops (see `superinfer.scheduler.kernels`)."""

from __future__ import annotations

import math

import numpy as np

from superinfer.scheduler.columns import (
    ARRIVAL_S,
    COMPUTED,
    CONTRACT,
    IS_LOST,
    LOG_PRIORITY,
    MAX_TOKENS,
    PLANNED_OUTPUTS,
    SEQUENCE_ID,
    FloatArray,
    IntArray,
)
from superinfer.scheduler.kernels import Constants, compiled, step_s
from superinfer.scheduler.moore_hodgson import split_jobs
from superinfer.scheduler.policies.slack_kernels import (
    deadline_jobs,
    find_slacks,
    log_risk,
    time_to_zero_ms,
)
from superinfer.scheduler.sorting import sort_entries


@compiled
def assess_class(
    counts: IntArray,
    times: FloatArray,
    candidates: IntArray,
    level_column: IntArray,
    level: int,
    constants: Constants,
    points: FloatArray,
    correction: float,
    now: float,
    members: IntArray,
    slacks: FloatArray,
) -> tuple[int, int]:
    """Puts those of the candidates that are of a class and have anything left to plan into `members`: first those that
    can make it, with the slack of each, in the order in which they came, then the lost ones by arrival; how many of
    either. Notes who is lost.
    """
    found = 0
    for row in candidates:
        if level_column[counts[row, CONTRACT]] == level and counts[row, PLANNED_OUTPUTS] < counts[row, MAX_TOKENS]:
            members[found] = row
            found += 1
    find_slacks(counts, times, members[:found], constants, points, correction, now, slacks)
    live = 0
    while live < found and slacks[live] > 0.0:
        counts[members[live], IS_LOST] = False
        live += 1
    if live == found:
        return live, 0
    lost_rows = np.empty(found - live, np.int64)
    lost = 0
    for i in range(live, found):
        row = members[i]
        counts[row, IS_LOST] = slacks[i] <= 0.0
        if slacks[i] <= 0.0:
            lost_rows[lost] = row
            lost += 1
        else:
            members[live], slacks[live] = row, slacks[i]
            live += 1
    arrivals, ids = np.empty(lost, np.float64), np.empty(lost, np.int64)
    order, spare = np.arange(lost), np.empty(lost, np.int64)
    for i in range(lost):
        arrivals[i], ids[i] = times[lost_rows[i], ARRIVAL_S], counts[lost_rows[i], SEQUENCE_ID]
    sort_entries(arrivals, arrivals, ids, order, spare)
    for i in range(lost):
        members[live + i] = lost_rows[order[i]]
    return live, lost


@compiled
def sort_by_risk(counts: IntArray, times: FloatArray, decay: FloatArray, rows: IntArray, slacks: FloatArray) -> None:
    """Sorts rows that can make it, and their slacks, highest risk first, at equal risk the earlier critical time; best
    effort by arrival.
    """
    length = len(rows)
    first, second = np.empty(length, np.float64), np.empty(length, np.float64)
    ids, order, spare = np.empty(length, np.int64), np.arange(length), np.empty(length, np.int64)
    for i in range(length):
        row = rows[i]
        ids[i] = counts[row, SEQUENCE_ID]
        if slacks[i] == math.inf:
            first[i], second[i] = 0.0, times[row, ARRIVAL_S]
        else:
            slack_ms = slacks[i] * 1e3
            first[i] = -log_risk(decay, times[row, LOG_PRIORITY], slack_ms)
            second[i] = time_to_zero_ms(decay, slack_ms)
    sort_entries(first, second, ids, order, spare)
    take_in_order(rows, slacks, order)


@compiled
def take_in_order(rows: IntArray, slacks: FloatArray, order: IntArray) -> None:
    """Rows, and their slacks, in the order of these positions."""
    old_rows, old_slacks = rows.copy(), slacks.copy()
    for i in range(len(order)):
        rows[i], slacks[i] = old_rows[order[i]], old_slacks[order[i]]


@compiled
def grow_by_risk(
    counts: IntArray, times: FloatArray, decay: FloatArray, rows: IntArray, slacks: FloatArray, growing: IntArray
) -> None:
    """Blocks go to the highest risk first; `growing` are some of the rows, in the order of those."""
    if len(growing) < 2:
        return
    their = np.empty(len(growing), np.float64)
    found = 0
    for i in range(len(rows)):
        if found < len(growing) and rows[i] == growing[found]:
            their[found] = slacks[i]
            found += 1
    sort_by_risk(counts, times, decay, growing, their)


@compiled
def split_class(
    counts: IntArray,
    times: FloatArray,
    rows: IntArray,
    slacks: FloatArray,
    now: float,
    share_left: float,
    most: int,
    constants: Constants,
    points: FloatArray,
    correction: float,
    prompt_token_s: float,
) -> int:
    """Those that can all make it together come first, then those to give up, each with the least work left first; how
    many are kept. The rows come by risk; `most` of them decode together.

    In overload, requests in deadline order would all be brought near to their ends and all be late.
    """
    batch = max(min(len(rows), most), 1)
    context = batch * counts[rows[0], COMPUTED]
    token_s = step_s(constants, points, correction, batch, batch, context, 0.0, batch, 0) / batch
    time_left_s, works_s = deadline_jobs(counts, times, rows, now, token_s, prompt_token_s)
    ids, order = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    for i in range(len(rows)):
        works_s[i] /= share_left
        ids[i] = counts[rows[i], SEQUENCE_ID]
    kept = split_jobs(time_left_s, works_s, ids, order)
    take_in_order(rows, slacks, order)
    return kept
