"""Compiled loops of the slack policy: slack, rank and allowance of many sequences at one moment.

The arithmetic is that of `superinfer.scheduler.slack` and `superinfer.scheduler.decay`; see
`superinfer.scheduler.kernels` on why it is the same to the last bit. `decay` is a profile's (see `decay_columns`).
"""

from __future__ import annotations

import math

import numpy as np

from superinfer.scheduler.columns import (
    ARRIVAL_S,
    COMPUTED,
    CONTRACT,
    DEADLINE_S,
    EXPECTED_OUTPUTS,
    FIRST_TOKEN_S,
    IS_LOST,
    LOG_PRIORITY,
    MAX_TOKENS,
    PLANNED_OUTPUTS,
    PREFILL_TARGET,
    SEQUENCE_ID,
    TPOT_S,
    TTFT_DEADLINE_S,
    FloatArray,
    IntArray,
)
from superinfer.scheduler.decay import DecayProfile
from superinfer.scheduler.kernels import compiled, linear_s, step_s
from superinfer.scheduler.sorting import sort_entries


def decay_columns(decay: DecayProfile) -> FloatArray:
    """A decay profile as rows of (threshold, rate below it, time to zero at the threshold below), in milliseconds.

    The last row's threshold is infinite; one more row holds the high-risk threshold and the coefficient.
    """
    floors, knees = (0.0, *decay.thresholds_ms), decay.knees_ms
    rows = [
        (threshold, rate, floor, knee)
        for threshold, rate, floor, knee in zip(
            (*decay.thresholds_ms, math.inf), decay.rates, floors, knees, strict=True
        )
    ]
    return np.array([*rows, (decay.high_risk_threshold_ms, decay.decay_coefficient, 0.0, 0.0)], np.float64)


@compiled
def time_to_zero_ms(decay: FloatArray, slack_ms: float) -> float:
    """As DecayProfile.time_to_zero_ms."""
    if slack_ms <= 0.0:
        return slack_ms / decay[0, 1]
    i = 0
    while decay[i, 0] < slack_ms:
        i += 1
    return decay[i, 3] + (slack_ms - decay[i, 2]) / decay[i, 1]


@compiled
def log_risk(decay: FloatArray, log_base: float, slack_ms: float) -> float:
    """As DecayProfile.log_risk."""
    last = decay.shape[0] - 1
    overrun = decay[last, 0] - slack_ms
    if overrun <= 0.0:
        return log_base
    return log_base + decay[last, 1] * overrun / max(decay[last, 0], 1.0)


@compiled
def one_token_s(constants: FloatArray, points: FloatArray) -> float:
    """What every decode alone in its step takes before its own terms: found once for all rows."""
    return constants[0] + linear_s(points, 1)


@compiled
def decode_step_s(constants: FloatArray, base_s: float, correction: float, context: int) -> float:
    """As LatencyModel.decode_step_s; `base_s` is `one_token_s`."""
    return correction * (base_s + constants[1] * context + constants[2] + constants[5] + constants[6])


@compiled
def prefill_s(constants: FloatArray, points: FloatArray, correction: float, start: int, count: int) -> float:
    """As LatencyModel.prefill_s."""
    pairs = count * (start + (count + 1) / 2)
    return step_s(constants, points, correction, count, 0, 0, pairs, 1, 1)


@compiled
def outputs_left(counts: IntArray, row: int) -> int:
    """As SequenceState.outputs_left."""
    expected = min(counts[row, EXPECTED_OUTPUTS], counts[row, MAX_TOKENS])
    return max(expected - counts[row, PLANNED_OUTPUTS], 1)


@compiled
def remaining_s(
    counts: IntArray, row: int, constants: FloatArray, points: FloatArray, base_s: float, correction: float
) -> float:
    """As superinfer.scheduler.slack.remaining_s; `base_s` is `one_token_s`."""
    left = outputs_left(counts, row)
    context, target = counts[row, COMPUTED], counts[row, PREFILL_TARGET]
    time_s = 0.0
    if context < target:
        time_s = prefill_s(constants, points, correction, context, target - context)
        context = target
        left -= 1
        if left < 1:
            return time_s
    return time_s + left * decode_step_s(constants, base_s, correction, context + left // 2)


@compiled
def milestones(
    counts: IntArray,
    times: FloatArray,
    row: int,
    constants: FloatArray,
    points: FloatArray,
    base_s: float,
    correction: float,
    now: float,
    found: FloatArray,
) -> int:
    """As superinfer.scheduler.slack.milestones: how many there are, and rows of `found` with the slack, the steps left
    and the time left of each.
    """
    number = 0
    if times[row, DEADLINE_S] < math.inf:
        time_left = times[row, DEADLINE_S] - now
        found[number, 0] = time_left - remaining_s(counts, row, constants, points, base_s, correction)
        found[number, 1] = outputs_left(counts, row)
        found[number, 2] = time_left
        number += 1
    if times[row, TTFT_DEADLINE_S] < math.inf and counts[row, PLANNED_OUTPUTS] == 0:
        time_left = times[row, TTFT_DEADLINE_S] - now
        computed = counts[row, COMPUTED]
        count = max(counts[row, PREFILL_TARGET] - computed, 1)
        found[number, 0] = time_left - prefill_s(constants, points, correction, computed, count)
        found[number, 1] = 1.0
        found[number, 2] = time_left
        number += 1
    first_token_s = times[row, FIRST_TOKEN_S]
    if times[row, TPOT_S] < math.inf and first_token_s == first_token_s:
        time_left = first_token_s + counts[row, PLANNED_OUTPUTS] * times[row, TPOT_S] - now
        found[number, 0] = time_left - decode_step_s(constants, base_s, correction, counts[row, COMPUTED])
        found[number, 1] = 1.0
        found[number, 2] = time_left
        number += 1
    return number


@compiled
def allowance_s(
    counts: IntArray,
    times: FloatArray,
    rows: IntArray,
    constants: FloatArray,
    points: FloatArray,
    correction: float,
    now: float,
    decay: FloatArray,
    share: float,
    margin_s: float,
    upper_ratio: float,
) -> tuple[float, float]:
    """What all rows can bear, over all their milestones, as (even, whole) of an Allowance; unlimited for best effort.

    `share` and `margin_s` are the reserve's. A step may take longer than predicted: what is allowed is what fits even
    at the model's upper quantile.
    """
    found = np.empty((3, 3), np.float64)
    base_s = one_token_s(constants, points)
    even = whole = math.inf
    for row in rows:
        own_s = decode_step_s(constants, base_s, correction, counts[row, COMPUTED])
        for k in range(milestones(counts, times, row, constants, points, base_s, correction, now, found)):
            usable_s = time_to_zero_ms(decay, found[k, 0] * 1e3) / 1e3
            spare_s = usable_s - share * max(found[k, 2], 0.0) - margin_s
            even = min(even, (own_s + spare_s / found[k, 1]) / upper_ratio)
            whole = min(whole, (own_s + spare_s) / upper_ratio)
    return even, whole


@compiled
def deadline_jobs(
    counts: IntArray, times: FloatArray, rows: IntArray, now: float, token_s: float, prompt_token_s: float
) -> tuple[FloatArray, FloatArray]:
    """(time to the deadline, work left) of each row in seconds: a token takes `token_s`, one of the prompt
    `prompt_token_s`.
    """
    time_left_s, works_s = np.empty(len(rows), np.float64), np.empty(len(rows), np.float64)
    for i in range(len(rows)):
        row = rows[i]
        prefill_left = max(counts[row, PREFILL_TARGET] - counts[row, COMPUTED], 0)
        time_left_s[i] = times[row, DEADLINE_S] - now
        works_s[i] = outputs_left(counts, row) * token_s + prefill_left * prompt_token_s
    return time_left_s, works_s


@compiled
def needed_pace_s(counts: IntArray, times: FloatArray, rows: IntArray, now: float) -> float:
    """The least time per output token left to the deadline among the rows that can decode; infinite without any."""
    pace_s = math.inf
    for row in rows:
        is_decoding = counts[row, COMPUTED] >= counts[row, PREFILL_TARGET]
        if is_decoding and counts[row, PLANNED_OUTPUTS] < counts[row, MAX_TOKENS]:
            pace_s = min(pace_s, (times[row, DEADLINE_S] - now) / outputs_left(counts, row))
    return pace_s


@compiled
def rank_rows(
    counts: IntArray,
    times: FloatArray,
    rows: IntArray,
    constants: FloatArray,
    points: FloatArray,
    correction: float,
    now: float,
    decay: FloatArray,
    ranked: IntArray,
    slacks: FloatArray,
) -> int:
    """Puts the rows that can make it into `ranked`, then the lost ones, with the slack of each; returns how many can.

    Slack is the smallest over all milestones, infinite for best effort. Rank is highest risk first, at equal risk the
    earlier critical time; best effort by arrival. The lost ones go by arrival. Notes who is lost.
    """
    length = len(rows)
    first, second = np.empty(length, np.float64), np.empty(length, np.float64)
    unordered = np.empty(length, np.float64)
    ids, order, spare = np.empty(length, np.int64), np.empty(length, np.int64), np.empty(length, np.int64)
    found = np.empty((3, 3), np.float64)
    base_s = one_token_s(constants, points)
    live = 0
    lost = length
    for i in range(length):
        row = rows[i]
        ids[i] = counts[row, SEQUENCE_ID]
        slack = math.inf
        for k in range(milestones(counts, times, row, constants, points, base_s, correction, now, found)):
            slack = min(slack, found[k, 0])
        unordered[i] = slack
        counts[row, IS_LOST] = slack <= 0.0
        if slack <= 0.0:
            first[i], second[i] = times[row, ARRIVAL_S], 0.0
            lost -= 1
            order[lost] = i
            continue
        if slack == math.inf:
            first[i], second[i] = 0.0, times[row, ARRIVAL_S]
        else:
            slack_ms = slack * 1e3
            first[i] = -log_risk(decay, times[row, LOG_PRIORITY], slack_ms)
            second[i] = time_to_zero_ms(decay, slack_ms)
        order[live] = i
        live += 1
    sort_entries(first, second, ids, order[:live], spare[:live])
    sort_entries(first, second, ids, order[live:], spare[live:])
    for i in range(length):
        ranked[i] = rows[order[i]]
        slacks[i] = unordered[order[i]]
    return live


@compiled
def order_by_remaining(
    counts: IntArray,
    times: FloatArray,
    rows: IntArray,
    constants: FloatArray,
    points: FloatArray,
    correction: float,
    order: IntArray,
) -> None:
    """Positions of the rows by remaining time without the model's correction, then arrival, then id."""
    remaining, arrivals = np.empty(len(rows), np.float64), np.empty(len(rows), np.float64)
    ids, spare = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    base_s = one_token_s(constants, points)
    for i in range(len(rows)):
        row = rows[i]
        order[i] = i
        remaining[i] = remaining_s(counts, row, constants, points, base_s, correction) / correction
        arrivals[i] = times[row, ARRIVAL_S]
        ids[i] = counts[row, SEQUENCE_ID]
    sort_entries(remaining, arrivals, ids, order, spare)


@compiled
def highest_level(counts: IntArray, rows: IntArray, levels: IntArray) -> int:
    """The least urgent class that has one of these rows; -1 without any."""
    highest = -1
    for row in rows:
        highest = max(highest, levels[counts[row, CONTRACT]])
    return highest


@compiled
def rows_of_level(counts: IntArray, rows: IntArray, levels: IntArray, level: int, found: IntArray) -> int:
    """Puts the rows of a class that have anything left to plan into `found`; how many."""
    number = 0
    for row in rows:
        if counts[row, PLANNED_OUTPUTS] < counts[row, MAX_TOKENS] and levels[counts[row, CONTRACT]] == level:
            found[number] = row
            number += 1
    return number
