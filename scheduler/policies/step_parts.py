"""What the compiled composition of a slack step asks and does again and again, on the whole state of a step."""

from __future__ import annotations

import math

from superinfer.scheduler.columns import (
    BLOCKS,
    COMPUTED,
    CONTRACT,
    PLANNED_IN,
    PREFILL_TARGET,
    ROTATED,
    RUNNING,
    STATUS,
    WAITING,
    IntArray,
)
from superinfer.scheduler.kernels import (
    compiled,
    largest_chunk,
    next_prefill,
    plan_decodes,
    step_s,
)
from superinfer.scheduler.policies import step_state as at
from superinfer.scheduler.policies.slack_kernels import allowance_s, decode_step_s, one_token_s
from superinfer.scheduler.policies.step_state import Step

LEAST_CAP_STEPS = 2.0
"""The step cap is at least as long as this many steps of one decode."""


@compiled
def runs_below(step: Step) -> bool:
    """Whether a sequence of a less urgent class runs."""
    level = step.state[at.LEVEL]
    for row in step.candidates:
        if step.counts[row, STATUS] == RUNNING and step.level_column[step.counts[row, CONTRACT]] > level:
            return True
    return False


@compiled
def all_decodes_fit(counts: IntArray, rows: IntArray, state: IntArray) -> bool:
    """Whether whatever can decode will, in any order, none is rotated, and none lacks room that others could give."""
    size = state[at.BLOCK_SIZE]
    decodes = growing = most = 0
    for row in rows:
        status, computed = counts[row, STATUS], counts[row, COMPUTED]
        if status == ROTATED:
            return False
        if status == WAITING or computed < counts[row, PREFILL_TARGET]:
            if status == WAITING and state[at.MAY_ASK] and state[at.RUNS] >= state[at.MAX_RUNS]:
                return False
            goal = (counts[row, PREFILL_TARGET] if status == WAITING else computed) + 1
            if state[at.MAY_ASK]:
                most = max(most, -(-goal // size) - counts[row, BLOCKS])
        elif counts[row, PLANNED_IN] != state[at.STAMP]:
            decodes += 1
            growing += computed >= counts[row, BLOCKS] * size
    return state[at.TOKENS] + decodes <= state[at.MAX_STEP_TOKENS] and growing + most <= state[at.FREE]


@compiled
def decode(step: Step, rows: IntArray, begin: int, stops: int, air_blocks: int, limit_s: float) -> int:
    """`plan_decodes` of these rows; returns where it stopped."""
    state, figures = step.state, step.figures
    position, planned, grown, context = plan_decodes(
        step.counts,
        rows,
        begin,
        stops,
        state[at.STAMP],
        step.constants,
        step.points,
        figures[at.CORRECTION],
        limit_s,
        state[at.TOKENS],
        state[at.DECODES],
        state[at.CONTEXT],
        figures[at.PAIRS],
        state[at.ROWS],
        state[at.CHUNKS],
        state[at.MAX_STEP_TOKENS],
        state[at.BLOCK_SIZE],
        state[at.FREE],
        air_blocks,
        state[at.RUNS] < state[at.MAX_RUNS],
        step.chosen[state[at.DECODES] :],
        step.growing[state[at.GROWN] :],
    )
    state[at.TOKENS] += planned
    state[at.DECODES] += planned
    state[at.CONTEXT] += context
    state[at.ROWS] += planned
    state[at.GROWN] += grown
    state[at.FREE] -= grown
    return position


@compiled
def following_prefill(step: Step, rows: IntArray, begin: int, entering: bool) -> int:
    """`next_prefill`; len(rows) where the step has no token left."""
    if step.state[at.TOKENS] >= step.state[at.MAX_STEP_TOKENS]:
        return len(rows)
    return next_prefill(step.counts, rows, begin, step.state[at.STAMP], entering)


@compiled
def chunk_within(step: Step, row: int, limit_s: float) -> int:
    """The largest chunk of a row's prompt with which the step stays within a limit; 0 if not even one token does."""
    state, computed = step.state, step.counts[row, COMPUTED]
    left = step.counts[row, PREFILL_TARGET] - computed
    return largest_chunk(
        step.constants,
        step.points,
        step.figures[at.CORRECTION],
        state[at.TOKENS],
        state[at.DECODES],
        state[at.CONTEXT],
        step.figures[at.PAIRS],
        state[at.ROWS],
        state[at.CHUNKS],
        computed,
        left,
        min(left, state[at.MAX_STEP_TOKENS] - state[at.TOKENS]),
        limit_s,
    )


@compiled
def allowed_s(step: Step, rows: IntArray, reserve_share: float, margin_s: float) -> tuple[float, float]:
    """`allowance_s` of these rows."""
    return allowance_s(
        step.counts,
        step.times,
        rows,
        step.constants,
        step.points,
        step.figures[at.CORRECTION],
        step.figures[at.NOW],
        step.decay,
        reserve_share,
        margin_s,
        step.figures[at.UPPER_RATIO],
    )


@compiled
def idle_cap_s(step: Step, level: int) -> float:
    """Step cap while nothing more urgent than a class is alive: what the tightest contract above can bear to wait, and
    never less than it takes to share a step.
    """
    alone_s = decode_step_s(step.constants, one_token_s(step.constants, step.points), step.figures[at.CORRECTION], 0)
    return max(step.levels[level, at.IDLE_CAP_S], LEAST_CAP_STEPS * alone_s)


@compiled
def burst_s(step: Step) -> float:
    """As Allowance.burst_s of what limits the step, on top of what it holds."""
    figures = step.figures
    is_capped = figures[at.CAP_S] < math.inf
    even_s = figures[at.CAP_S] if is_capped else figures[at.EVEN_S]
    whole_s = figures[at.CAP_S] if is_capped else figures[at.WHOLE_S]
    base_s = predicted_s(step, 0, 0, 0.0, 0)
    return max(even_s, base_s + figures[at.BURST_SHARE] * max(whole_s - base_s, 0.0))


@compiled
def predicted_s(step: Step, tokens: int, decodes: int, pairs: float, chunks: int) -> float:
    """Predicted time of the step with so much more in it; 0 while it is empty."""
    state = step.state
    if state[at.TOKENS] + tokens == 0:
        return 0.0
    return step_s(
        step.constants,
        step.points,
        step.figures[at.CORRECTION],
        state[at.TOKENS] + tokens,
        state[at.DECODES] + decodes,
        state[at.CONTEXT],
        step.figures[at.PAIRS] + pairs,
        state[at.ROWS] + decodes,
        state[at.CHUNKS] + chunks,
    )
