"""Steps in which all that run decode, one after the other in one compiled loop: each is checked against what a plan
would decide, timed and counted, until a plan would decide otherwise.
"""

from __future__ import annotations

import math

from superinfer.profiler.latency_model import UPPER_GAIN, UPPER_QUANTILE
from superinfer.scheduler.columns import (
    BLOCKS,
    COMMITTED,
    COMPUTED,
    IN_FLIGHT,
    IS_DECODING,
    LAST_TOKEN_S,
    LONGEST_GAP_S,
    MAX_TOKENS,
    PLANNED_OUTPUTS,
    PREFILL_TARGET,
    FloatArray,
    IntArray,
)
from superinfer.scheduler.kernels import compiled, step_s
from superinfer.scheduler.policies import step_state as at
from superinfer.scheduler.policies.class_order import assess_class
from superinfer.scheduler.policies.step_parts import allowed_s, burst_s, idle_cap_s, predicted_s
from superinfer.scheduler.policies.step_state import Step

LAST_CONTEXT, LAST_DURATION_S, END_S = range(3)
"""Cells of `result`: what the last step attended to, how long it took, when it ended."""


@compiled
def are_decoding(counts: IntArray, rows: IntArray) -> bool:
    """Whether all of these rows have had their first token and have another to come, and none is in a step."""
    for row in rows:
        if (
            counts[row, COMPUTED] < counts[row, PREFILL_TARGET]
            or counts[row, PLANNED_OUTPUTS] >= counts[row, MAX_TOKENS]
            or counts[row, IN_FLIGHT]
            or not counts[row, IS_DECODING]
        ):
            return False
    return True


@compiled
def decode_stretch(
    step: Step,
    rows: IntArray,
    noise: FloatArray,
    begins_before_s: float,
    ends_before_s: float,
    overhead_s: float,
    correction_gain: float,
    spare_blocks: int,
    result: FloatArray,
) -> int:
    """Run steps that decode all rows, the first at NOW; returns how many. A step takes its predicted time, without
    correction, times its `noise`, after a gap of `overhead_s`.

    The last one is that with which a sequence ends, or after which the next would begin at or after `begins_before_s`,
    end at or after `ends_before_s`, lack blocks, or hold something else. What the last step teaches the latency model
    is left to when it ends; CORRECTION and UPPER_RATIO are as those before it have left them. Rows that need a block
    are in `growing`, GROWN of them, counted as theirs.
    """
    counts, times, state, figures = step.counts, step.times, step.state, step.figures
    size, number, now = state[at.BLOCK_SIZE], len(rows), figures[at.NOW]
    correction, upper = figures[at.CORRECTION], figures[at.UPPER_RATIO]
    steps = grown = 0
    duration_s = uncorrected_s = 0.0
    has_ended = False
    while steps < len(noise) and now < begins_before_s and not has_ended:
        if steps:
            exceeds = 1.0 if duration_s > upper * correction * uncorrected_s else 0.0
            figures[at.UPPER_RATIO] = upper + UPPER_GAIN * (exceeds - (1.0 - UPPER_QUANTILE))
            ratio = min(max(duration_s / uncorrected_s, 0.5 * correction), 2.0 * correction)
            figures[at.CORRECTION] = correction + correction_gain * (ratio - correction)
        context = growing = 0
        for row in rows:
            context += counts[row, COMPUTED]
            growing += counts[row, COMPUTED] >= counts[row, BLOCKS] * size
        next_s = step_s(step.constants, step.points, 1.0, number, number, context, 0.0, number, 0)
        begin_s = now + overhead_s
        end_s = begin_s + next_s * noise[steps]
        figures[at.NOW] = now
        has_blocks = grown + growing <= min(spare_blocks, len(step.growing))
        if not has_blocks or end_s >= ends_before_s or not decodes_all(step, rows):
            break
        correction, upper = figures[at.CORRECTION], figures[at.UPPER_RATIO]
        for row in rows:
            if counts[row, COMPUTED] >= counts[row, BLOCKS] * size:
                counts[row, BLOCKS] += 1
                step.growing[grown] = row
                grown += 1
            counts[row, COMPUTED] += 1
            counts[row, PLANNED_OUTPUTS] += 1
            counts[row, COMMITTED] += 1
            times[row, LONGEST_GAP_S] = max(times[row, LONGEST_GAP_S], end_s - times[row, LAST_TOKEN_S])
            times[row, LAST_TOKEN_S] = end_s
            has_ended |= counts[row, PLANNED_OUTPUTS] >= counts[row, MAX_TOKENS]
        steps += 1
        now, uncorrected_s, duration_s = end_s, next_s, end_s - begin_s
        result[LAST_CONTEXT], result[LAST_DURATION_S], result[END_S] = context, duration_s, end_s
    figures[at.CORRECTION], figures[at.UPPER_RATIO], state[at.GROWN] = correction, upper, grown
    return steps


@compiled
def decodes_all(step: Step, rows: IntArray) -> bool:
    """Whether a plan at NOW would decode all of these and nothing else, if they were alone and short of nothing; true
    where there are no classes.

    Time grows with what a step holds: in whichever order, all fit where the last one does.
    """
    counts, state, figures = step.counts, step.state, step.figures
    upper = figures[at.UPPER_RATIO]
    figures[at.UPPER_RATIO] = max(upper, 1.0)
    figures[at.EVEN_S] = figures[at.WHOLE_S] = math.inf
    figures[at.PAIRS] = 0.0
    state[at.TOKENS] = state[at.DECODES] = state[at.CONTEXT] = state[at.ROWS] = state[at.CHUNKS] = 0
    fits = True
    for level in range(len(step.levels)):
        live, lost = assess_class(
            counts,
            step.times,
            rows,
            step.level_column,
            level,
            step.constants,
            step.points,
            figures[at.CORRECTION],
            figures[at.NOW],
            step.members,
            step.slacks,
        )
        figures[at.CAP_S] = math.inf
        is_first = figures[at.EVEN_S] == math.inf and level == 0
        if figures[at.EVEN_S] == math.inf and not is_first:
            figures[at.CAP_S] = idle_cap_s(step, level)
        limit_s = math.inf if is_first else burst_s(step)
        live_rows, lost_rows = step.members[:live], step.members[live : live + lost]
        fits = fits and decode_within(step, live_rows, limit_s)
        # What limits the others is how these are after their decode.
        shift(counts, live_rows, 1)
        even_s, whole_s = allowed_s(step, live_rows, step.levels[level, at.RESERVE_SHARE], figures[at.MARGIN_S])
        shift(counts, live_rows, -1)
        figures[at.EVEN_S], figures[at.WHOLE_S] = min(figures[at.EVEN_S], even_s), min(figures[at.WHOLE_S], whole_s)
        fits = fits and decode_within(step, lost_rows, min(figures[at.EVEN_S], figures[at.CAP_S]))
        if not fits:
            break
    figures[at.UPPER_RATIO] = upper
    return fits


@compiled
def shift(counts: IntArray, rows: IntArray, tokens: int) -> None:
    """So many tokens more are computed and planned."""
    for row in rows:
        counts[row, COMPUTED] += tokens
        counts[row, PLANNED_OUTPUTS] += tokens


@compiled
def decode_within(step: Step, rows: IntArray, limit_s: float) -> bool:
    """Add a decode of each row to the step; whether it stays within a limit."""
    state = step.state
    if not len(rows):
        return True
    for row in rows:
        state[at.CONTEXT] += step.counts[row, COMPUTED]
    state[at.TOKENS] += len(rows)
    state[at.DECODES] += len(rows)
    state[at.ROWS] += len(rows)
    return limit_s == math.inf or predicted_s(step, 0, 0, 0.0, 0) <= limit_s
