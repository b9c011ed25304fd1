"""Compiled loops over the rows of `superinfer.scheduler.columns`: what a plan asks of every sequence, in microseconds.

The arithmetic is that of `superinfer.profiler.latency_model` and `superinfer.scheduler.slack`, the same operations in
the same order on the same 64-bit floats, so that every figure is the same to the last bit. Hence no `fastmath`.

`constants` and `points` are a latency model's (see `model_columns`), `shape` is a step's (see `shape_columns`).
Functions that call each other stay in this file: compiled code is cached by the file it came from.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numba import njit

from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.columns import (
    BLOCKS,
    COMMITTED,
    COMPUTED,
    FIRST_TOKEN_S,
    HOST_BLOCKS,
    IN_FLIGHT,
    IS_DECODING,
    LAST_TOKEN_S,
    LONGEST_GAP_S,
    MAX_TOKENS,
    PLANNED_IN,
    PLANNED_OUTPUTS,
    PREFILL_TARGET,
    ROTATED,
    RUNNING,
    SEQUENCE_ID,
    STATUS,
    WAITING,
    FloatArray,
    IntArray,
)

Function = TypeVar("Function", bound=Callable[..., Any])

Constants = tuple[float, ...]
"""A latency model's fitted constants, all of them floats; cheaper to hand on than an array."""

STOP_SHORT = 1
"""Stop at a decode that lacks a block."""
STOP_PREFILL = 2
"""Stop at a running sequence that has yet to be prefilled."""
STOP_ROTATED = 4
"""Stop at a rotated sequence that could come back and decode."""
STOP_ROTATED_PREFILL = 8
"""Stop at a rotated sequence that could come back and has yet to be prefilled."""
STOP_CROWDED = 16
"""Stop at a sequence that lacks room to enter, to come back or to be prefilled."""
STOP_MAY_PREFILL = 32
"""Stop at a waiting or running sequence of which a chunk could go in."""


def compiled(function: Function) -> Function:
    """Compile on first use; kept on disk."""
    result: Function = njit(cache=True, error_model="numpy")(function)
    return result


def part(function: Function) -> Function:
    """Compile into a compiled function that calls it, and only for that: without what Python would need to call it,
    which takes longer to compile than most of these functions.
    """
    result: Function = njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)
    return result


def model_columns(model: LatencyModel) -> tuple[Constants, FloatArray]:
    """A latency model's fitted constants, and its points as rows of (tokens, seconds)."""
    constants = (
        float(model.launch_s),
        float(model.decode_context_s),
        float(model.decode_s),
        float(model.prefill_pair_s),
        float(model.chunk_s),
        float(model.row_s),
        float(model.head_s),
    )
    return constants, np.array(model.linear_points, np.float64)


@compiled
def linear_s(points: FloatArray, tokens: float) -> float:
    """As LatencyModel.linear_s."""
    last = points.shape[0] - 1
    i = 1
    while i < last and points[i, 0] <= tokens:
        i += 1
    x0, y0, x1, y1 = points[i - 1, 0], points[i - 1, 1], points[i, 0], points[i, 1]
    return y0 + (tokens - x0) * (y1 - y0) / (x1 - x0) if tokens > x0 else y0


@compiled
def step_s(
    constants: Constants,
    points: FloatArray,
    correction: float,
    tokens: int,
    decodes: int,
    context: int,
    pairs: float,
    rows: int,
    chunks: int,
) -> float:
    """As LatencyModel.step_s of a step that is not empty."""
    return correction * (
        constants[0]
        + linear_s(points, tokens)
        + constants[1] * context
        + constants[2] * decodes
        + constants[3] * pairs
        + constants[4] * chunks
        + constants[5] * rows
        + (constants[6] if rows > 0 else 0.0)
    )


@compiled
def step_s_with_chunk(
    constants: Constants,
    points: FloatArray,
    correction: float,
    tokens: int,
    decodes: int,
    context: int,
    pairs: float,
    heads: int,
    chunks: int,
    start: int,
    left: int,
    count: int,
) -> float:
    """Predicted time of the step with a chunk of `count` of the `left` prompt tokens after `start` cached ones; it
    samples where all that is left goes in.
    """
    added = count * (start + (count + 1) / 2)
    return step_s(
        constants,
        points,
        correction,
        tokens + count,
        decodes,
        context,
        pairs + added,
        heads + (1 if count >= left else 0),
        chunks + 1,
    )


@compiled
def largest_chunk(
    constants: Constants,
    points: FloatArray,
    correction: float,
    tokens: int,
    decodes: int,
    context: int,
    pairs: float,
    heads: int,
    chunks: int,
    start: int,
    left: int,
    most: int,
    limit_s: float,
) -> int:
    """The most prompt tokens, up to `most`, with which the step stays within `limit_s`; 0 if not even one does."""
    step = (constants, points, correction, tokens, decodes, context, pairs, heads, chunks, start, left)
    if most <= 0 or step_s_with_chunk(*step, 1) > limit_s:
        return 0
    if step_s_with_chunk(*step, most) <= limit_s:
        return most
    low, high = 1, most
    while high - low > 1:
        middle = (low + high) // 2
        if step_s_with_chunk(*step, middle) <= limit_s:
            low = middle
        else:
            high = middle
    return low


@compiled
def plan_decodes(
    counts: IntArray,
    rows: IntArray,
    begin: int,
    stops: int,
    stamp: int,
    constants: Constants,
    points: FloatArray,
    correction: float,
    limit_s: float,
    tokens: int,
    decodes: int,
    context: int,
    pairs: float,
    heads: int,
    chunks: int,
    max_tokens: int,
    block_size: int,
    free_blocks: int,
    air_blocks: int,
    may_enter: bool,
    chosen: IntArray,
    growing: IntArray,
) -> tuple[int, int, int, int]:
    """Plan a decode of each row that can and that fits, in order, from position `begin`.

    A row fits while the step stays within `limit_s`, has fewer than `max_tokens` tokens, and where the row needs a
    block, one is free. A rotated sequence could come back where `may_enter`, and `air_blocks` stay free afterwards.
    Returns where it stopped (see the STOP_ constants; len(rows) at the end), how many rows it put into `chosen`, how
    many of those need a block, which it put into `growing` and counted as theirs, and the context that they attend to.
    """
    planned = grown = added_context = 0
    for position in range(begin, len(rows)):
        row = rows[position]
        status = counts[row, STATUS]
        computed = counts[row, COMPUTED]
        if counts[row, PLANNED_IN] == stamp or counts[row, PLANNED_OUTPUTS] >= counts[row, MAX_TOKENS]:
            continue
        free = free_blocks - grown
        if status == ROTATED:
            lacks_room = not may_enter or counts[row, HOST_BLOCKS] > free - air_blocks
            is_prefilled = computed >= counts[row, PREFILL_TARGET]
            wanted = STOP_ROTATED if is_prefilled else STOP_ROTATED_PREFILL
            if not stops & (STOP_CROWDED if lacks_room else wanted):
                continue
            if not is_prefilled or limit_s == math.inf:
                return position, planned, grown, added_context
        elif status == WAITING or computed < counts[row, PREFILL_TARGET]:
            is_waiting = status == WAITING
            goal = (counts[row, PREFILL_TARGET] if is_waiting else computed) + 1
            lacks_room = -(-goal // block_size) - counts[row, BLOCKS] > free or (is_waiting and not may_enter)
            if (
                (stops & STOP_PREFILL and not is_waiting)
                or (stops & STOP_CROWDED and lacks_room)
                or (stops & STOP_MAY_PREFILL and not lacks_room and tokens + planned < max_tokens)
            ):
                return position, planned, grown, added_context
            continue
        if limit_s < math.inf:
            predicted_s = step_s(
                constants,
                points,
                correction,
                tokens + planned + 1,
                decodes + planned + 1,
                context + added_context + computed,
                pairs,
                heads + planned + 1,
                chunks,
            )
            if predicted_s > limit_s:
                continue
        if status == ROTATED:
            return position, planned, grown, added_context
        lacks_block = computed >= counts[row, BLOCKS] * block_size
        if lacks_block and free < 1:
            if stops & STOP_SHORT:
                return position, planned, grown, added_context
            continue
        if status != RUNNING or tokens + planned >= max_tokens:
            continue
        if lacks_block:
            growing[grown] = row
            grown += 1
            counts[row, BLOCKS] += 1
        chosen[planned] = row
        planned += 1
        added_context += computed
        counts[row, COMPUTED] = computed + 1
        counts[row, PLANNED_OUTPUTS] += 1
        counts[row, IN_FLIGHT] += 1
        counts[row, PLANNED_IN] = stamp
    return len(rows), planned, grown, added_context


@compiled
def blocks_lacking(counts: IntArray, rows: IntArray, block_size: int) -> int:
    """Blocks that these rows, running or rotated, lack to come back or to take their next token."""
    lacking = 0
    for row in rows:
        if counts[row, STATUS] == ROTATED:
            lacking += counts[row, HOST_BLOCKS]
        else:
            lacking += max(-(-(counts[row, COMPUTED] + 1) // block_size) - counts[row, BLOCKS], 0)
    return lacking


@compiled
def next_prefill(counts: IntArray, rows: IntArray, begin: int, stamp: int, may_enter: bool) -> int:
    """The position, from `begin`, of the first row that is on the device, or waits and `may_enter`, has yet to be
    prefilled and has no work in this step; len(rows) if there is none.
    """
    for position in range(begin, len(rows)):
        row = rows[position]
        status = counts[row, STATUS]
        if counts[row, COMPUTED] >= counts[row, PREFILL_TARGET] or counts[row, PLANNED_IN] == stamp:
            continue
        if status == RUNNING or (status == WAITING and may_enter):
            return position
    return len(rows)


@compiled
def are_owned(counts: IntArray, rows: IntArray, expected_rows: IntArray, ids: IntArray) -> bool:
    """Whether these rows are those expected and each still belongs to the sequence with the id given."""
    if len(rows) != len(expected_rows):
        return False
    same = 0
    for i in range(len(rows)):
        same += rows[i] == expected_rows[i] and counts[rows[i], SEQUENCE_ID] == ids[i]
    return same == len(rows)


@compiled
def land(counts: IntArray, rows: IntArray, ids: IntArray) -> None:
    """A step is back: one less in flight for each of its sequences that is still there."""
    for i in range(len(rows)):
        row = rows[i]
        if counts[row, SEQUENCE_ID] == ids[i] and counts[row, IN_FLIGHT] > 0:
            counts[row, IN_FLIGHT] -= 1


@compiled
def commit(
    counts: IntArray, times: FloatArray, rows: IntArray, ids: IntArray, indices: IntArray, now: float, begins: IntArray
) -> int:
    """Count one more committed token of each row. Returns how many of them have to change to the stage of decoding,
    which it put into `begins`; −1, and nothing changed, where a row has another owner or expects another token.
    """
    for i in range(len(rows)):
        row = rows[i]
        if counts[row, SEQUENCE_ID] != ids[i] or counts[row, COMMITTED] != indices[i]:
            return -1
    begun = 0
    for i in range(len(rows)):
        row = rows[i]
        counts[row, COMMITTED] += 1
        if times[row, FIRST_TOKEN_S] != times[row, FIRST_TOKEN_S]:
            times[row, FIRST_TOKEN_S] = now
        else:
            times[row, LONGEST_GAP_S] = max(times[row, LONGEST_GAP_S], now - times[row, LAST_TOKEN_S])
        times[row, LAST_TOKEN_S] = now
        if counts[row, STATUS] == RUNNING and not counts[row, IS_DECODING]:
            begins[begun] = row
            begun += 1
    return begun
