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
from superinfer.scheduler.kernels import Constants, compiled, inlined, linear_s, step_s
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


@inlined
def outputs_left(counts: IntArray, row: int) -> int:
    """As SequenceState.outputs_left."""
    expected = min(counts[row, EXPECTED_OUTPUTS], counts[row, MAX_TOKENS])
    return max(expected - counts[row, PLANNED_OUTPUTS], 1)


@compiled
def remaining_s(
    context: int, target: int, left: int, constants: Constants, points: FloatArray, base_s: float, correction: float
) -> float:
    """As superinfer.scheduler.slack.remaining_s of a sequence with `context` tokens computed, `target` to be prefilled
    and `left` to be output; `base_s` is `one_token_s`.
    """
    time_s = 0.0
    if context < target:
        time_s = prefill_s(constants, points, correction, context, target - context)
        context = target
        left -= 1
        if left < 1:
            return time_s
    return time_s + left * decode_step_s(constants, base_s, correction, context + left // 2)


@inlined
def milestone_slacks_s(
    counts: IntArray,
    times: FloatArray,
    row: int,
    constants: Constants,
    points: FloatArray,
    base_s: float,
    correction: float,
    now: float,
) -> tuple[float, float, float]:
    """As superinfer.scheduler.slack.milestones: the slack towards the deadline, the first token and the next token;
    infinite where there is no such milestone.
    """
    computed, target, planned = counts[row, COMPUTED], counts[row, PREFILL_TARGET], counts[row, PLANNED_OUTPUTS]
    whole_s = first_s = next_s = math.inf
    if times[row, DEADLINE_S] < math.inf:
        left = outputs_left(counts, row)
        own_s = remaining_s(computed, target, left, constants, points, base_s, correction)
        whole_s = times[row, DEADLINE_S] - now - own_s
    if times[row, TTFT_DEADLINE_S] < math.inf and planned == 0:
        own_s = prefill_s(constants, points, correction, computed, max(target - computed, 1))
        first_s = times[row, TTFT_DEADLINE_S] - now - own_s
    begun_s = times[row, FIRST_TOKEN_S]
    if times[row, TPOT_S] < math.inf and begun_s == begun_s:
        own_s = decode_step_s(constants, base_s, correction, computed)
        next_s = begun_s + planned * times[row, TPOT_S] - now - own_s
    return whole_s, first_s, next_s


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
        own_s = decode_step_s(constants, base_s, correction, counts[row, COMPUTED])
        whole_s, first_s, next_s = milestone_slacks_s(counts, times, row, constants, points, base_s, correction, now)
        if whole_s < math.inf:
            left = outputs_left(counts, row)
            spare_s = usable_s(decay, whole_s, times[row, DEADLINE_S] - now, share, margin_s)
            even = min(even, (own_s + spare_s / left) / upper_ratio)
            whole = min(whole, (own_s + spare_s) / upper_ratio)
        if first_s < math.inf:
            bearable_s = own_s + usable_s(decay, first_s, times[row, TTFT_DEADLINE_S] - now, share, margin_s)
            even, whole = min(even, bearable_s / upper_ratio), min(whole, bearable_s / upper_ratio)
        if next_s < math.inf:
            due_s = times[row, FIRST_TOKEN_S] + counts[row, PLANNED_OUTPUTS] * times[row, TPOT_S]
            bearable_s = own_s + usable_s(decay, next_s, due_s - now, share, margin_s)
            even, whole = min(even, bearable_s / upper_ratio), min(whole, bearable_s / upper_ratio)
    return even, whole


@inlined
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
        remaining[i] = remaining_s(computed, target, left, constants, points, base_s, correction) / correction
        arrivals[i] = times[row, ARRIVAL_S]
        ids[i] = counts[row, SEQUENCE_ID]
    sort_entries(remaining, arrivals, ids, order, spare)
