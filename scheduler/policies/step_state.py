"""What the compiled composition of a slack step works on: the columns, the settings, and how far it has come.

Compiled code is cached by the file it came from: a change here has to go with a change of
`superinfer.scheduler.policies.step_kernel`.
"""

from __future__ import annotations

from typing import NamedTuple

from superinfer.scheduler.columns import FloatArray, IntArray
from superinfer.scheduler.kernels import Constants

STATE = 28
"""Integers of `Step.state`."""
(
    PHASE,
    LEVEL,
    START,
    LIVE,
    LOST,
    KEPT,
    POSITION,
    COUNT,
    TOKENS_BEFORE,
    MIN_CHUNK,
    MAY_ENTER,
    MAY_ASK,
    WENT_IN,
    TOKENS,
    DECODES,
    CONTEXT,
    ROWS,
    CHUNKS,
    GROWN,
    STAMP,
    FREE,
    AIR,
    RUNS,
    MAX_RUNS,
    MAX_STEP_TOKENS,
    BLOCK_SIZE,
    LOOSE_LIMIT,
    EFFICIENT_CHUNK,
) = range(28)
"""The loop's own up to MAY_ENTER; MAY_ASK and WENT_IN, which say what came of a stop; what the step holds, and GROWN
decodes that are to have a block each; and what is so for the whole plan."""

FIGURES = 11
"""Floats of `Step.figures`."""
(NOW, CORRECTION, UPPER_RATIO, PAIRS, EVEN_S, WHOLE_S, CAP_S, LIMIT_S, PROMPT_TOKEN_S, BURST_SHARE, MARGIN_S) = range(
    11
)

LEVEL_FIGURES = 6
"""Columns of `Step.levels`, a row for each class."""
(RESERVE_SHARE, SHARE_LEFT, IDLE_CAP_S, IS_BEST_EFFORT, FIRST_MEMBER, LIVE_MEMBERS) = range(6)
"""Share of the device kept for arrivals at least as urgent; share that more urgent ones leave; cap on a step without
urgent work; whether nothing is promised; and, the loop's own, where the live members are."""

(CLASS, FIRST_DECODES, FIRST_PREFILLS, WITHIN_DECODES, WITHIN_PREFILLS, ALLOWANCES, LOST_ONES, TURN) = range(8)
"""PHASE: what comes next."""

GO_ON, DONE, NEEDS_ROOM, MAY_RETURN, MAY_PREFILL, MAY_TAKE_TURN = range(6)
"""Why the loop stopped at the member at POSITION. The step is complete; the member needs room to decode, or is rotated
and of the most urgent class; it is rotated and could decode within LIMIT_S; COUNT of its prompt tokens may go in; or
best effort got nothing and may have a turn."""

MOST_BUSY = 0.95
"""Share of the device that more urgent classes can be held to take, at most."""


class Step(NamedTuple):
    """One step. `candidates` are the rows of all that could have work; `members` has room for all of them: the rows of
    the classes so far, with the slack of each that can make it. Rows that decode are put into `chosen`, those of them
    that are to have a block into `growing`.
    """

    counts: IntArray
    times: FloatArray
    candidates: IntArray
    level_column: IntArray
    constants: Constants
    points: FloatArray
    decay: FloatArray
    levels: FloatArray
    figures: FloatArray
    state: IntArray
    members: IntArray
    slacks: FloatArray
    chosen: IntArray
    growing: IntArray
