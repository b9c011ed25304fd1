"""Compiled loops of the slack policy: slack, rank and allowance of many sequences at one moment.

The arithmetic is that of `superinfer.scheduler.slack` and `superinfer.scheduler.decay`; see
`superinfer.scheduler.kernels` on why it is the same to the last bit. `decay` is a profile's (see `decay_columns`).

What is done for each row is written out in the loops, and calls functions that take numbers and return one: those cost
nothing, while one that returns several, or leaves early, takes twice the time of all the rest.
"""

from __future__ import annotations

import math

import numpy as np

from superinfer.scheduler.columns import (
    ARRIVAL_S,
    COMPUTED,
    DEADLINE_S,
    EXPECTED_OUTPUTS,
    FIRST_TOKEN_S,
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
from superinfer.scheduler.kernels import Constants, compiled, linear_s, step_s
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
def one_token_s(constants: Constants, points: FloatArray) -> float:
    """What every decode alone in its step takes before its own terms: found once for all rows."""
    return constants[0] + linear_s(points, 1)


@compiled
def decode_step_s(constants: Constants, base_s: float, correction: float, context: int) -> float:
    """As LatencyModel.decode_step_s; `base_s` is `one_token_s`."""
    return correction * (base_s + constants[1] * context + constants[2] + constants[5] + constants[6])


@compiled
def prefill_s(constants: Constants, points: FloatArray, correction: float, start: int, count: int) -> float:
    """As LatencyModel.prefill_s."""
    pairs = count * (start + (count + 1) / 2)
    return step_s(constants, points, correction, count, 0, 0, pairs, 1, 1)


@compiled
def outputs_left(counts: IntArray, row: int) -> int:
    """As SequenceState.outputs_left."""
    return max(min(counts[row, EXPECTED_OUTPUTS], counts[row, MAX_TOKENS]) - counts[row, PLANNED_OUTPUTS], 1)


@compiled
def prefill_and_decodes_s(
    context: int, target: int, left: int, constants: Constants, points: FloatArray, base_s: float, correction: float
) -> float:
    """As superinfer.scheduler.slack.remaining_s of a sequence with `context` tokens computed of the `target` to be
    prefilled, and `left` to be output; `base_s` is `one_token_s`.
    """
    time_s = prefill_s(constants, points, correction, context, target - context)
    if left < 2:
        return time_s
    return time_s + decodes_s(target, left - 1, constants, base_s, correction)


@compiled
def decodes_s(context: int, left: int, constants: Constants, base_s: float, correction: float) -> float:
    """As superinfer.scheduler.slack.remaining_s of a sequence whose `context` tokens are all prefilled."""
    return left * decode_step_s(constants, base_s, correction, context + left // 2)


@compiled
def find_slacks(
    counts: IntArray,
    times: FloatArray,
    rows: IntArray,
    constants: Constants,
    points: FloatArray,
    correction: float,
    now: float,
    slacks: FloatArray,
) -> None:
    """As superinfer.scheduler.slack.slack_s of each row."""
    base_s = one_token_s(constants, points)
    for i in range(len(rows)):
        row = rows[i]
        computed, target, planned = counts[row, COMPUTED], counts[row, PREFILL_TARGET], counts[row, PLANNED_OUTPUTS]
        slack_s = math.inf
        if times[row, DEADLINE_S] < math.inf:
            left = outputs_left(counts, row)
            if computed < target:
                own_s = prefill_and_decodes_s(computed, target, left, constants, points, base_s, correction)
            else:
                own_s = decodes_s(computed, left, constants, base_s, correction)
            slack_s = times[row, DEADLINE_S] - now - own_s
        if times[row, TTFT_DEADLINE_S] < math.inf and planned == 0:
            own_s = prefill_s(constants, points, correction, computed, max(target - computed, 1))
            slack_s = min(slack_s, times[row, TTFT_DEADLINE_S] - now - own_s)
        begun_s = times[row, FIRST_TOKEN_S]
        if times[row, TPOT_S] < math.inf and begun_s == begun_s:
            own_s = decode_step_s(constants, base_s, correction, computed)
            slack_s = min(slack_s, begun_s + planned * times[row, TPOT_S] - now - own_s)
        slacks[i] = slack_s


@compiled
def allowance_s(
    counts: IntArray,
    times: FloatArray,
    rows: IntArray,
    constants: Constants,
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
    base_s = one_token_s(constants, points)
    even = whole = math.inf
    for row in rows:
        computed, target, planned = counts[row, COMPUTED], counts[row, PREFILL_TARGET], counts[row, PLANNED_OUTPUTS]
        step_s = decode_step_s(constants, base_s, correction, computed)
        due_s = times[row, DEADLINE_S]
        if due_s < math.inf:
            left = outputs_left(counts, row)
            if computed < target:
                own_s = prefill_and_decodes_s(computed, target, left, constants, points, base_s, correction)
            else:
                own_s = decodes_s(computed, left, constants, base_s, correction)
            spare_s = usable_s(decay, due_s - now - own_s, due_s - now, share, margin_s)
            even = min(even, step_s + spare_s / left)
            whole = min(whole, step_s + spare_s)
        due_s = times[row, TTFT_DEADLINE_S]
        if due_s < math.inf and planned == 0:
            own_s = prefill_s(constants, points, correction, computed, max(target - computed, 1))
            bearable_s = step_s + usable_s(decay, due_s - now - own_s, due_s - now, share, margin_s)
            even, whole = min(even, bearable_s), min(whole, bearable_s)
        begun_s = times[row, FIRST_TOKEN_S]
        if times[row, TPOT_S] < math.inf and begun_s == begun_s:
            due_s = begun_s + planned * times[row, TPOT_S]
            bearable_s = step_s + usable_s(decay, due_s - now - step_s, due_s - now, share, margin_s)
            even, whole = min(even, bearable_s), min(whole, bearable_s)
    # Division keeps the order of numbers: the least of the quotients is the quotient of the least.
    return even / upper_ratio, whole / upper_ratio


@compiled
def usable_s(decay: FloatArray, slack_s: float, time_left_s: float, share: float, margin_s: float) -> float:
    """What may be spent of a slack: what is left of it as it decays, less the reserve."""
    return time_to_zero_ms(decay, slack_s * 1e3) / 1e3 - share * max(time_left_s, 0.0) - margin_s


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
def order_by_remaining(
    counts: IntArray,
    times: FloatArray,
    rows: IntArray,
    constants: Constants,
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
        left = outputs_left(counts, row)
        computed, target = counts[row, COMPUTED], counts[row, PREFILL_TARGET]
        if computed < target:
            own_s = prefill_and_decodes_s(computed, target, left, constants, points, base_s, correction)
        else:
            own_s = decodes_s(computed, left, constants, base_s, correction)
        remaining[i] = own_s / correction
        arrivals[i] = times[row, ARRIVAL_S]
        ids[i] = counts[row, SEQUENCE_ID]
    sort_entries(remaining, arrivals, ids, order, spare)
