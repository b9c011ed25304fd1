"""Compiled: the step that needs no plan. Where nobody waits, and all that run on a domain are of the most urgent class,
have their prompts computed and can make it, the slack policy lets each of them decode: most steps of long answers.
"""

from __future__ import annotations

from superinfer.executor.simulation import fleet_state as of
from superinfer.executor.simulation import light_state as li
from superinfer.executor.simulation.fleet_state import Fleet
from superinfer.executor.simulation.light_kernels import known_growing
from superinfer.scheduler.columns import (
    BLOCKS,
    COMPUTED,
    CONTRACT,
    IN_FLIGHT,
    IS_LOST,
    MAX_TOKENS,
    PLANNED_OUTPUTS,
    PREFILL_TARGET,
    FloatArray,
    IntArray,
)
from superinfer.scheduler.kernels import part
from superinfer.scheduler.policies.slack_kernels import find_slacks
from superinfer.scheduler.policies.step_state import Step


@part
def all_decode(fleet: Fleet, ground: Step, number: int) -> bool:
    """Fill a domain's next step with a decode of each that runs, where that is what the slack policy would do; False,
    and nothing changed, where it may not be.
    """
    its, shared, counts = fleet.domains[number], fleet.shared, ground.counts
    running = its[of.RUNS]
    if shared[of.WAITING] or running == 0 or running > shared[of.MAX_TOKENS]:
        return False
    rows, size = fleet.members[number, :running], shared[of.BLOCK_SIZE]
    grown = growth(counts, rows, ground.level_column, size)
    if grown < 0 or grown > its[of.FREE]:
        return False
    slacks, now = ground.slacks[:running], fleet.clock[of.NOW]
    correction = fleet.speeds[its[of.SPEED_ROW], 0]
    find_slacks(counts, ground.times, rows, ground.constants, ground.points, correction, now, slacks)
    if not all_positive(slacks):
        return False
    before = its[of.GROWN]
    its[of.CONTEXT] = decode_rows(counts, rows, size, fleet.chosen[number], fleet.growing[number, before:])
    its[of.GROWN] += grown
    its[of.TOKENS] = its[of.DECODES] = its[of.ROWS] = running
    its[of.CHUNKS] = its[of.HAS_FINISHED] = 0
    its[of.FREE] -= grown
    its[of.IS_SERVED] = 1
    fleet.flights[number, of.PAIRS] = 0.0
    if grown and fleet.light.cells[li.IS_LIGHT]:
        known_growing(fleet, number, before)
    return True


@part
def growth(counts: IntArray, rows: IntArray, level_column: IntArray, size: int) -> int:
    """How many blocks a decode of each row takes; −1 where one cannot decode or is not of the most urgent class."""
    grown = 0
    for row in rows:
        computed = counts[row, COMPUTED]
        is_done = counts[row, PLANNED_OUTPUTS] >= counts[row, MAX_TOKENS]
        if computed < counts[row, PREFILL_TARGET] or is_done or level_column[counts[row, CONTRACT]] != 0:
            return -1
        grown += computed >= counts[row, BLOCKS] * size
    return grown


@part
def all_positive(values: FloatArray) -> bool:
    """Whether all are above 0."""
    least = 1.0
    for value in values:
        least = min(least, value)
    return least > 0.0


@part
def decode_rows(counts: IntArray, rows: IntArray, size: int, chosen: IntArray, growing: IntArray) -> int:
    """As `plan_decodes` of rows that can all decode: the context that they attend to."""
    context = grown = 0
    for i in range(len(rows)):
        row = rows[i]
        computed = counts[row, COMPUTED]
        if computed >= counts[row, BLOCKS] * size:
            growing[grown] = row
            grown += 1
            counts[row, BLOCKS] += 1
        chosen[i] = row
        context += computed
        counts[row, COMPUTED] = computed + 1
        counts[row, PLANNED_OUTPUTS] += 1
        counts[row, IN_FLIGHT] += 1
        counts[row, IS_LOST] = 0
    return context
