"""Requests that the compiled event loop takes in and lets go by itself: the scheduler has no objects of them.

Such a request has a row in the scheduler's tables like any other, and what more there is to know of it is here. Whoever
needs the objects has them made first (`superinfer.executor.simulation.light_requests`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from superinfer.scheduler.columns import FloatArray, IntArray

(IS_LIGHT, PENDING, ARRIVED, FREE_ROWS, NEXT_ID, LOGGED, OPEN, SPEEDS) = range(8)
"""Cells of `Light.cells`. While IS_LIGHT the loop takes requests in: PENDING of them have been handed to it, of which
ARRIVED have come; the next gets the sequence id NEXT_ID. LOGGED have ended since the log was last read; OPEN are the
loop's alone; SPEEDS domains have learnt their speed."""

(CHUNK_RISE_S, DECODE_RISE_S, LAST_END_S) = range(3)
"""Cells of `Light.figures`: what 120 more prompt tokens and one more decode take uncorrected; when the last request
ended."""

(CONTRACT, PROMPT, MAX_TOKENS, NUMBER) = range(4)
"""Columns of `Light.pending`: the contract's row in `Fleet.loads`, and the request's number by arrival."""

(ITS_NUMBER, DOMAIN) = range(2)
"""Columns of `Light.rows`: the request's number, KNOWN where the scheduler has an object of it; where it runs."""
KNOWN = -1

(DEADLINE_S, TTFT_S, TPOT_S, LOG_PRIORITY, CONTRACT_NUMBER, GAIN) = range(6)
TERMS = 6
"""Columns of `Light.terms`: what a contract gives each of its requests, and how fast its load is learnt."""

(ID, ROW) = range(2)
"""Columns of a line in `Light.lines`."""
LIVE, LAPSED = range(2)
"""The two lines of a contract."""

(LOG_NUMBER, LOG_DOMAIN, LOG_TOKENS, LOG_MET) = range(4)
(ENTERED_S, FIRST_S, LAST_S, GAP_S, FINISHED_S) = range(5)
"""Columns of `Light.log` and `Light.log_s`."""
MISSED, MET, UNPROMISED = range(3)
"""LOG_MET."""

MOST_PENDING = 500
LOG = 4096


class Light(NamedTuple):
    """`pending` are requests that come at `pending_s`, in order. `rows` and `entered_s` go with the rows of the
    scheduler's tables, of which the first FREE_ROWS of `free` are nobody's. The requests of the contract in row c of
    `terms` wait in `lines[c]` from `spans[.., 0]` to `spans[.., 1]` by `keys`, as in WaitingQueues; `order` is that in
    which a plan looks at the contracts. `log` is what became of whom.
    """

    cells: IntArray
    figures: FloatArray
    pending: IntArray
    pending_s: FloatArray
    rows: IntArray
    entered_s: FloatArray
    free: IntArray
    terms: FloatArray
    order: IntArray
    lines: IntArray
    keys: FloatArray
    spans: IntArray
    log: IntArray
    log_s: FloatArray


def empty_light(log_room: int) -> Light:
    """Nobody waits, and nobody is taken in; `log_room` is how many may end beyond LOG."""
    return Light(
        cells=np.zeros(8, np.int64),
        figures=np.zeros(3, np.float64),
        pending=np.zeros((MOST_PENDING, 4), np.int64),
        pending_s=np.zeros(MOST_PENDING, np.float64),
        rows=np.zeros((0, 2), np.int64),
        entered_s=np.zeros(0, np.float64),
        free=np.zeros(0, np.int64),
        terms=np.zeros((0, TERMS), np.float64),
        order=np.zeros(0, np.int64),
        lines=np.zeros((0, 2, 0, 2), np.int64),
        keys=np.zeros((0, 2, 0), np.float64),
        spans=np.zeros((0, 2, 2), np.int64),
        log=np.zeros((LOG + log_room, 4), np.int64),
        log_s=np.zeros((LOG + log_room, 5), np.float64),
    )
