"""Compiled: requests arrive, wait and end without the scheduler's objects, as they do with them."""

from __future__ import annotations

import math

import numpy as np

from superinfer.executor.simulation import fleet_state as of
from superinfer.executor.simulation import light_state as li
from superinfer.executor.simulation.fleet_state import Fleet
from superinfer.executor.simulation.light_state import Light
from superinfer.profiler.latency_model import FEW_PROMPT_TOKENS, MANY_PROMPT_TOKENS
from superinfer.scheduler.columns import (
    ARRIVAL_S,
    BLOCKS,
    COMMITTED,
    CONTRACT,
    DEADLINE_S,
    EXPECTED_OUTPUTS,
    FIRST_TOKEN_S,
    LAST_TOKEN_S,
    LOG_PRIORITY,
    LONGEST_GAP_S,
    MAX_TOKENS,
    NOBODY,
    PREFILL_TARGET,
    SEQUENCE_ID,
    TPOT_S,
    TTFT_DEADLINE_S,
    FloatArray,
    IntArray,
)
from superinfer.scheduler.kernels import part
from superinfer.scheduler.policies.slack import BEST_EFFORT_DEADLINE_S
from superinfer.scheduler.policies.slack_kernels import find_slacks, outputs_left, time_to_zero_ms
from superinfer.scheduler.policies.step_state import Step


@part
def next_arrival_s(light: Light) -> float:
    """When the next request comes that the loop takes in; infinite without any."""
    cells = light.cells
    return light.pending_s[cells[li.ARRIVED]] if cells[li.ARRIVED] < cells[li.PENDING] else math.inf


@part
def has_room(fleet: Fleet) -> bool:
    """Whether there is room for one more request wherever it is written down."""
    light = fleet.light
    cells = light.cells
    contract = light.pending[cells[li.ARRIVED], li.CONTRACT]
    may_wait = 2 * (fleet.shared[of.WAITING] + 1) < light.lines.shape[2]
    return bool(cells[li.FREE_ROWS] > 0 and may_wait and fleet.spans[contract, 1] < fleet.arrivals.shape[1])


@part
def arrive(fleet: Fleet, ground: Step) -> None:
    """The next pending request comes now: as Scheduler.add."""
    light, now = fleet.light, fleet.clock[of.NOW]
    cells = light.cells
    pending = light.pending[cells[li.ARRIVED]]
    contract = pending[li.CONTRACT]
    cells[li.ARRIVED] += 1
    cells[li.FREE_ROWS] -= 1
    row = light.free[cells[li.FREE_ROWS]]
    counts, times, terms = ground.counts[row], ground.times[row], light.terms[contract]
    counts[:] = 0
    counts[SEQUENCE_ID], counts[PREFILL_TARGET] = cells[li.NEXT_ID], pending[li.PROMPT]
    counts[MAX_TOKENS] = counts[EXPECTED_OUTPUTS] = pending[li.MAX_TOKENS]
    counts[CONTRACT] = int(terms[li.CONTRACT_NUMBER])
    times[ARRIVAL_S], times[LOG_PRIORITY] = now, terms[li.LOG_PRIORITY]
    times[DEADLINE_S], times[TTFT_DEADLINE_S] = now + terms[li.DEADLINE_S], now + terms[li.TTFT_S]
    times[TPOT_S], times[LONGEST_GAP_S] = terms[li.TPOT_S], 0.0
    times[FIRST_TOKEN_S] = times[LAST_TOKEN_S] = math.nan
    light.rows[row, li.ITS_NUMBER] = pending[li.NUMBER]
    cells[li.NEXT_ID] += 1
    cells[li.OPEN] += 1
    slack_s = learn_load(fleet, ground, row, contract)
    key = BEST_EFFORT_DEADLINE_S + now
    if slack_s < math.inf:
        key = now + time_to_zero_ms(ground.decay, slack_s * 1e3) / 1e3
    push(light, contract, li.LIVE, key, counts[SEQUENCE_ID], row)
    fleet.shared[of.WAITING] += 1
    fleet.shared[of.IS_STALE] = 1


@part
def learn_load(fleet: Fleet, ground: Step, row: int, contract: int) -> float:
    """As ContractLoad.add_arrival of a contract that has had requests: the slack with which this one comes. The model
    speaks for the mean of all domains.
    """
    light, now, loads = fleet.light, fleet.clock[of.NOW], fleet.loads[contract]
    total = 0.0
    for i in range(light.cells[li.SPEEDS]):
        total += fleet.speeds[i, 0]
    correction = total / light.cells[li.SPEEDS]
    prompt_token_s = correction * light.figures[li.CHUNK_RISE_S] / (MANY_PROMPT_TOKENS - FEW_PROMPT_TOKENS)
    decode_s = correction * light.figures[li.DECODE_RISE_S]
    left = outputs_left(ground.counts, row)
    device_s = ground.counts[row, PREFILL_TARGET] * prompt_token_s + left * decode_s
    rows, slacks = np.array([row], np.int64), np.empty(1, np.float64)
    find_slacks(ground.counts, ground.times, rows, ground.constants, ground.points, correction, now, slacks)
    slack_s: float = slacks[0]
    fleet.arrivals[contract, fleet.spans[contract, 1]] = now
    fleet.spans[contract, 1] += 1
    gain = light.terms[contract, li.GAIN]
    loads[of.DEVICE_S] += gain * (device_s - loads[of.DEVICE_S])
    if slack_s < math.inf:
        loads[of.INITIAL_SLACK_S] += gain * (slack_s - loads[of.INITIAL_SLACK_S])
    return slack_s


@part
def push(light: Light, contract: int, which: int, key: float, sequence_id: int, row: int) -> None:
    """Into a line, by key and then by id. A line that has come to its end moves to its beginning."""
    line, keys, span = light.lines[contract, which], light.keys[contract, which], light.spans[contract, which]
    if span[1] == len(keys):
        length = span[1] - span[0]
        for i in range(length):
            line[i, li.ID], line[i, li.ROW] = line[span[0] + i, li.ID], line[span[0] + i, li.ROW]
            keys[i] = keys[span[0] + i]
        span[0], span[1] = 0, length
    i = span[1]
    span[1] += 1
    while i > span[0] and (keys[i - 1] > key or (keys[i - 1] == key and line[i - 1, li.ID] > sequence_id)):
        line[i, li.ID], line[i, li.ROW], keys[i] = line[i - 1, li.ID], line[i - 1, li.ROW], keys[i - 1]
        i -= 1
    line[i, li.ID], line[i, li.ROW], keys[i] = sequence_id, row, key


@part
def take_out(light: Light, contract_number: int, row: int, most: int) -> None:
    """A row that waits leaves its line; it is among the first `most` of one of its contract."""
    for contract in range(len(light.spans)):
        if light.terms[contract, li.CONTRACT_NUMBER] != contract_number:
            continue
        for which in range(2):
            line, keys, span = light.lines[contract, which], light.keys[contract, which], light.spans[contract, which]
            for found in range(span[0], min(span[1], span[0] + most)):
                if line[found, li.ROW] != row:
                    continue
                for i in range(found, span[0], -1):
                    line[i, li.ID], line[i, li.ROW], keys[i] = line[i - 1, li.ID], line[i - 1, li.ROW], keys[i - 1]
                span[0] += 1
                return


@part
def show_waiting(fleet: Fleet, times: FloatArray) -> None:
    """As FleetGround.show_waiting: those lapse whose time has come, and the first of each line are shown."""
    light, shared, now = fleet.light, fleet.shared, fleet.clock[of.NOW]
    lapses_s, shown = math.inf, 0
    for contract in light.order:
        line, keys, spans = light.lines[contract], light.keys[contract], light.spans[contract]
        live = spans[li.LIVE]
        while live[0] < live[1] and keys[li.LIVE, live[0]] <= now:
            sequence_id, row = line[li.LIVE, live[0], li.ID], line[li.LIVE, live[0], li.ROW]
            live[0] += 1
            push(light, contract, li.LAPSED, times[row, ARRIVAL_S], sequence_id, row)
        if live[0] < live[1]:
            lapses_s = min(lapses_s, keys[li.LIVE, live[0]])
        for which in range(2):
            most = 4 * shared[of.LOOSE] if which == li.LIVE else shared[of.LOOSE]
            for i in range(spans[which, 0], min(spans[which, 0] + most, spans[which, 1])):
                fleet.waiting[shown] = line[which, i, li.ROW]
                shown += 1
    shared[of.SHOWN], shared[of.IS_STALE] = shown, 0
    fleet.clock[of.LAPSES_S] = lapses_s


@part
def is_light(light: Light, row: int) -> bool:
    """Whether the scheduler has no object of whoever this row belongs to."""
    return bool(light.cells[li.IS_LIGHT] != 0 and light.rows[row, li.ITS_NUMBER] != li.KNOWN)


@part
def enter(fleet: Fleet, counts: IntArray, number: int, entered: int) -> None:
    """Those that have entered a domain with the step that is now complete wait no more; the scheduler has only to be
    told of those that it knows.
    """
    light, shared = fleet.light, fleet.shared
    kept = entered
    for i in range(entered, shared[of.ENTERED]):
        row = fleet.entered[i, 0]
        take_out(light, counts[row, CONTRACT], row, 4 * shared[of.LOOSE])
        if light.rows[row, li.ITS_NUMBER] == li.KNOWN:
            fleet.entered[kept, 0], fleet.entered[kept, 1] = row, number
            fleet.entered_s[kept] = fleet.clock[of.NOW]
            kept += 1
        else:
            light.rows[row, li.DOMAIN], light.entered_s[row] = number, fleet.clock[of.NOW]
    shared[of.ENTERED] = kept


@part
def known_growing(fleet: Fleet, number: int, grown: int) -> None:
    """Of the rows that have had a block each in the step that is now complete, keep those that the scheduler knows."""
    its, kept = fleet.domains[number], grown
    for i in range(grown, its[of.GROWN]):
        row = fleet.growing[number, i]
        if fleet.light.rows[row, li.ITS_NUMBER] == li.KNOWN:
            fleet.growing[number, kept] = row
            kept += 1
    its[of.GROWN] = kept


@part
def end(fleet: Fleet, counts: IntArray, times: FloatArray, row: int) -> None:
    """A light request has had its last token now: as Scheduler.completed."""
    light, now = fleet.light, fleet.clock[of.NOW]
    cells = light.cells
    log, log_s = light.log[cells[li.LOGGED]], light.log_s[cells[li.LOGGED]]
    cells[li.LOGGED] += 1
    tokens, first_s = counts[row, COMMITTED], times[row, FIRST_TOKEN_S]
    number, domain = light.rows[row, li.ITS_NUMBER], light.rows[row, li.DOMAIN]
    log[li.LOG_NUMBER], log[li.LOG_DOMAIN], log[li.LOG_TOKENS] = number, domain, tokens
    log_s[li.ENTERED_S], log_s[li.FIRST_S], log_s[li.LAST_S] = light.entered_s[row], first_s, times[row, LAST_TOKEN_S]
    log_s[li.GAP_S], log_s[li.FINISHED_S] = times[row, LONGEST_GAP_S], now
    is_late = now > times[row, DEADLINE_S] or first_s > times[row, TTFT_DEADLINE_S]
    is_slow = tokens > 1 and (now - first_s) / (tokens - 1) > times[row, TPOT_S]
    is_bound = min(times[row, DEADLINE_S], times[row, TTFT_DEADLINE_S], times[row, TPOT_S]) < math.inf
    log[li.LOG_MET] = (li.MISSED if is_late or is_slow else li.MET) if is_bound else li.UNPROMISED
    light.figures[li.LAST_END_S] = now
    fleet.domains[domain, of.FREE] += counts[row, BLOCKS]
    fleet.domains[domain, of.HAS_FINISHED] = 1
    counts[row, SEQUENCE_ID] = NOBODY
    light.rows[row, li.ITS_NUMBER] = li.KNOWN
    light.free[cells[li.FREE_ROWS]] = row
    cells[li.FREE_ROWS] += 1
    cells[li.OPEN] -= 1
