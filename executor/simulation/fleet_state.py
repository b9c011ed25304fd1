"""What the compiled event loop works on: every domain's figures in rows, the step that each has in flight, and what
has happened that the scheduler's objects do not know yet.

The tables are the scheduler's own where it has them: sequences in `counts` and `times`, what each domain's steps have
taught in `speeds`. Compiled code is cached by the file it came from: a change here has to go with a change of the files
that use it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from superinfer.executor.simulation.light_state import Light
from superinfer.scheduler.columns import FloatArray, IntArray

(
    MODE,
    IS_IDLE,
    SPEED_ROW,
    RUNS,
    HAS_ROTATED,
    FREE,
    AIR,
    HAS_FINISHED,
    GROWN,
    IS_FLYING,
    ORDER,
    TOKENS,
    DECODES,
    CONTEXT,
    ROWS,
    CHUNKS,
    IS_ASKED,
    NOISE_USED,
    STEPS,
    OUTPUTS,
    IS_SERVED,
) = range(21)
"""Columns of `Fleet.domains`. What a domain has: sequences that run, blocks, whether its worker has yet to be told of
ended sequences, rows in `growing`. The step in flight: in which order it began, its shape, and whether the scheduler
planned it. What was counted since
the scheduler was last told: steps, output tokens, and whether best effort got its share."""
DOMAIN_COUNTS = 21

DOWN, COMPILED, ASKS = range(3)
"""MODE of a domain: serves nothing; is planned here; each of its steps is the scheduler's to plan."""

BEGIN_S, END_S, PAIRS, MORE_S = range(4)
"""Columns of `Fleet.flights`: when the step in flight began and ends, the rest of its shape, what it takes
beside that."""

ROW, START, COUNT, SAMPLES = range(4)
"""Columns of `Fleet.chunks`."""

(
    PHASE,
    FROM,
    DOMAIN,
    KIND,
    WAITING,
    SHOWN,
    LEAST_BLOCKS,
    HAS_MAP,
    IS_WATCHED,
    IS_STALE,
    NEXT_ORDER,
    ENDED,
    BEGUN,
    ENTERED,
    CONTRACTS,
    HAS_BEST_EFFORT,
    MAX_RUNS,
    MAX_TOKENS,
    BLOCK_SIZE,
    KEEPS_ORDER,
    DOMAINS_UP,
    LOOSE,
    EFFICIENT,
) = range(23)
"""Cells of `Fleet.shared`. PHASE and FROM say how far the loop is with planning, DOMAIN which one it returned for.
WAITING requests wait, of which SHOWN are in `waiting`; the least any head of them needs is LEAST_BLOCKS. With
IS_WATCHED somebody has to be told of every token; IS_STALE when `waiting` has to be filled anew."""
SHARED = 23

(NOW, LAPSES_S, OVERHEAD_S, GAIN, ALPHA, IDLE_SHARE, BURST_SHARE, MARGIN_S) = range(8)
"""Cells of `Fleet.clock`. Before LAPSES_S nobody that waits lapses; the rest is set once."""
CLOCK = 8

(LEVEL, FIRST_S, WINDOW_S, WARM_S, DEVICE_S, INITIAL_SLACK_S) = range(6)
LOADS = 6
"""Columns of `Fleet.loads`, a row for each contract."""

SLACK_KIND, BUDGET_KIND, OTHER_KIND = range(3)
"""KIND: how the policy composes."""

LOOK, PLANNING, RUN_ON = range(3)
"""PHASE: something has happened at NOW; domains from FROM on plan; time goes on."""

AT_HORIZON, MUST_PLAN, HAS_ENDED, NEEDS_NOISE, NEEDS_WAITING, NEEDS_ROOM, NEEDS_ARRIVALS = range(7)
"""Why the loop returned: what is due first is not in the fleet; the scheduler has to plan DOMAIN; a step of it has
ended with which sequences end, or there is somebody to be told; it has no noise left; `waiting` has to be filled
anew; a list is full; the last request that was handed to the loop has arrived."""

NEWS = 4096
"""Room for what the scheduler does not know yet."""


class Fleet(NamedTuple):
    """All domains, one row each. `members` are the rows of those that run, in order of entry, `ordered` the same in the
    policy's order where that is fixed; `chosen` and `chunks` are what the step in flight holds, `growing` the rows that
    have taken a block; `noise` are factors on step times. `waiting` are rows that may enter, in the order in which a
    plan looks at them; `arrivals[i]` from `spans[i, 0]` to `spans[i, 1]` those of the contract in row i of `loads`.

    `ended` are sequences that end with the step that has just ended; `begun` and `entered` those that have had their
    first token or entered a domain, with when, since the scheduler was last told.
    """

    domains: IntArray
    flights: FloatArray
    speeds: FloatArray
    members: IntArray
    ordered: IntArray
    chosen: IntArray
    chunks: IntArray
    growing: IntArray
    noise: FloatArray
    shared: IntArray
    clock: FloatArray
    waiting: IntArray
    loads: FloatArray
    spans: IntArray
    arrivals: FloatArray
    ended: IntArray
    begun: IntArray
    begun_s: FloatArray
    entered: IntArray
    entered_s: FloatArray
    stamps: IntArray
    light: Light


def empty_fleet(
    domains: int, max_running: int, max_step_tokens: int, noise: int, speeds: FloatArray, stamps: IntArray, light: Light
) -> Fleet:
    """A fleet of so many domains, none of which serves yet; nobody waits."""
    room = max_step_tokens + 1

    def ints(*shape: int) -> IntArray:
        return np.zeros(shape, np.int64)

    def floats(*shape: int) -> FloatArray:
        return np.zeros(shape, np.float64)

    return Fleet(
        domains=ints(domains, DOMAIN_COUNTS),
        flights=floats(domains, 4),
        speeds=speeds,
        members=ints(domains, max_running),
        ordered=ints(domains, max_running),
        chosen=ints(domains, room),
        chunks=ints(domains, room, 4),
        growing=ints(domains, NEWS + room),
        noise=floats(domains, noise),
        shared=ints(SHARED),
        clock=floats(CLOCK),
        waiting=ints(0),
        loads=floats(0, LOADS),
        spans=ints(0, 2),
        arrivals=floats(0, 0),
        ended=ints(max_running),
        begun=ints(NEWS + (domains + 1) * room),
        begun_s=floats(NEWS + (domains + 1) * room),
        entered=ints(NEWS + room, 2),
        entered_s=floats(NEWS + room),
        stamps=stamps,
        light=light,
    )
