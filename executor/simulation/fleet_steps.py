"""Compiled: what becomes of the step that a domain has in flight, from its start to its end."""

from __future__ import annotations

import math

from superinfer.executor.simulation import fleet_state as of
from superinfer.executor.simulation import light_state as li
from superinfer.executor.simulation.fleet_state import Fleet
from superinfer.executor.simulation.light_kernels import end, is_light
from superinfer.profiler.latency_model import UPPER_GAIN, UPPER_QUANTILE
from superinfer.scheduler.columns import (
    COMMITTED,
    FIRST_TOKEN_S,
    IN_FLIGHT,
    IS_DECODING,
    LAST_TOKEN_S,
    LONGEST_GAP_S,
    MAX_TOKENS,
    RUNNING,
    STATUS,
    FloatArray,
    IntArray,
)
from superinfer.scheduler.kernels import Constants, part, step_s


@part
def uncorrected_s(fleet: Fleet, number: int, constants: Constants, points: FloatArray) -> float:
    """As LatencyModel.uncorrected_step_s of the step in flight."""
    its = fleet.domains[number]
    if its[of.TOKENS] == 0:
        return 0.0
    return step_s(
        constants,
        points,
        1.0,
        its[of.TOKENS],
        its[of.DECODES],
        its[of.CONTEXT],
        fleet.flights[number, of.PAIRS],
        its[of.ROWS],
        its[of.CHUNKS],
    )


@part
def take_off(fleet: Fleet, number: int, constants: Constants, points: FloatArray) -> None:
    """The step that a domain holds begins now: it takes its uncorrected time by the noise, and MORE_S."""
    its, shared = fleet.domains[number], fleet.shared
    noise = fleet.noise[number, its[of.NOISE_USED]]
    its[of.NOISE_USED] += 1
    begin_s = fleet.clock[of.NOW] + fleet.clock[of.OVERHEAD_S]
    fleet.flights[number, of.BEGIN_S] = begin_s
    end_s = begin_s + uncorrected_s(fleet, number, constants, points) * noise
    fleet.flights[number, of.END_S] = end_s + fleet.flights[number, of.MORE_S]
    its[of.IS_FLYING], its[of.IS_IDLE] = 1, 0
    its[of.ORDER] = shared[of.NEXT_ORDER]
    shared[of.NEXT_ORDER] += 1
    its[of.STEPS] += 1


@part
def learn(fleet: Fleet, number: int, constants: Constants, points: FloatArray) -> None:
    """As LearnedSpeeds.learn of the step that has ended."""
    predicted_s = uncorrected_s(fleet, number, constants, points)
    actual_s = fleet.flights[number, of.END_S] - fleet.flights[number, of.BEGIN_S]
    if predicted_s <= 0.0 or actual_s <= 0.0:
        return
    row = fleet.domains[number, of.SPEED_ROW]
    correction, upper = fleet.speeds[row, 0], fleet.speeds[row, 1]
    exceeds = 1.0 if actual_s > upper * correction * predicted_s else 0.0
    ratio = min(max(actual_s / predicted_s, 0.5 * correction), 2.0 * correction)
    fleet.speeds[row, 0] = correction + fleet.clock[of.GAIN] * (ratio - correction)
    fleet.speeds[row, 1] = upper + UPPER_GAIN * (exceeds - (1.0 - UPPER_QUANTILE))


@part
def land(
    fleet: Fleet, number: int, counts: IntArray, times: FloatArray, constants: Constants, points: FloatArray
) -> None:
    """The step has ended: its tokens are committed, and what it took is learnt. Who ends with it is in `ended`, in the
    order in which a device says so: decodes from the last row, then prefills.
    """
    its, shared, now = fleet.domains[number], fleet.shared, fleet.clock[of.NOW]
    its[of.IS_FLYING], its[of.IS_IDLE] = 0, 1
    shared[of.ENDED] = 0
    fleet.flights[number, of.MORE_S] = 0.0
    its[of.IS_ASKED] = 0
    if its[of.TOKENS]:
        learn(fleet, number, constants, points)
    shared[of.ENDED] = commit_decodes(counts, times, fleet.chosen[number, : its[of.DECODES]], now, fleet.ended)
    fleet.ended[: shared[of.ENDED]] = -_sorted(-fleet.ended[: shared[of.ENDED]])
    sampled = 0
    for i in range(its[of.CHUNKS]):
        row = fleet.chunks[number, i, of.ROW]
        counts[row, IN_FLIGHT] = max(counts[row, IN_FLIGHT] - 1, 0)
        if fleet.chunks[number, i, of.SAMPLES]:
            commit_row(fleet, counts, times, row, now)
            sampled += 1
    its[of.OUTPUTS] += its[of.DECODES] + sampled
    if shared[of.ENDED]:
        its[of.RUNS] = remaining(fleet.members[number], its[of.RUNS], counts)
        remaining(fleet.ordered[number], its[of.RUNS] + shared[of.ENDED], counts)
        if fleet.light.cells[li.IS_LIGHT]:
            shared[of.ENDED] = known_ended(fleet, counts, times)


@part
def known_ended(fleet: Fleet, counts: IntArray, times: FloatArray) -> int:
    """Let those go of which the scheduler has no object; how many are left in `ended`."""
    left = 0
    for i in range(fleet.shared[of.ENDED]):
        row = fleet.ended[i]
        if is_light(fleet.light, row):
            end(fleet, counts, times, row)
        else:
            fleet.ended[left] = row
            left += 1
    return left


@part
def remaining(rows: IntArray, number: int, counts: IntArray) -> int:
    """Leave those out that have all their tokens; how many of the first `number` rows are left."""
    left = 0
    for i in range(number):
        if counts[rows[i], COMMITTED] < counts[rows[i], MAX_TOKENS]:
            rows[left] = rows[i]
            left += 1
    return left


@part
def commit_decodes(counts: IntArray, times: FloatArray, rows: IntArray, now: float, ended: IntArray) -> int:
    """One more token of each of these sequences, which have had some; how many end with it."""
    found = 0
    for row in rows:
        counts[row, IN_FLIGHT] = max(counts[row, IN_FLIGHT] - 1, 0)
        counts[row, COMMITTED] += 1
        times[row, LONGEST_GAP_S] = max(times[row, LONGEST_GAP_S], now - times[row, LAST_TOKEN_S])
        times[row, LAST_TOKEN_S] = now
        if counts[row, COMMITTED] >= counts[row, MAX_TOKENS]:
            ended[found] = row
            found += 1
    return found


@part
def commit_row(fleet: Fleet, counts: IntArray, times: FloatArray, row: int, now: float) -> None:
    """One more token of a sequence."""
    shared = fleet.shared
    counts[row, COMMITTED] += 1
    if math.isnan(times[row, FIRST_TOKEN_S]):
        times[row, FIRST_TOKEN_S] = now
    else:
        times[row, LONGEST_GAP_S] = max(times[row, LONGEST_GAP_S], now - times[row, LAST_TOKEN_S])
    times[row, LAST_TOKEN_S] = now
    if counts[row, STATUS] == RUNNING and not counts[row, IS_DECODING]:
        counts[row, IS_DECODING] = 1
        if not is_light(fleet.light, row):
            fleet.begun[shared[of.BEGUN]], fleet.begun_s[shared[of.BEGUN]] = row, now
            shared[of.BEGUN] += 1
    if counts[row, COMMITTED] >= counts[row, MAX_TOKENS]:
        fleet.ended[shared[of.ENDED]] = row
        shared[of.ENDED] += 1


@part
def _sorted(values: IntArray) -> IntArray:
    """Few values, ascending."""
    for i in range(1, len(values)):
        value, j = values[i], i
        while j > 0 and values[j - 1] > value:
            values[j] = values[j - 1]
            j -= 1
        values[j] = value
    return values
