"""Compiled: the next step of a domain, as the scheduler would plan it; whatever needs the scheduler's own objects, but
for a sequence's entering, is undone and left to it.
"""

from __future__ import annotations

import math

from superinfer.executor.simulation import fleet_state as of
from superinfer.executor.simulation import light_state as li
from superinfer.executor.simulation.fleet_state import Fleet
from superinfer.executor.simulation.light_kernels import enter, known_growing
from superinfer.profiler.latency_model import FEW_PROMPT_TOKENS, MANY_PROMPT_TOKENS
from superinfer.scheduler.columns import (
    BLOCKS,
    COMPUTED,
    IN_FLIGHT,
    PLANNED_IN,
    PLANNED_OUTPUTS,
    PREFILL_TARGET,
    RUNNING,
    STATUS,
    WAITING,
    FloatArray,
)
from superinfer.scheduler.kernels import STOP_PREFILL, STOP_SHORT, linear_s, part
from superinfer.scheduler.policies import step_state as at
from superinfer.scheduler.policies.step_kernel import compose
from superinfer.scheduler.policies.step_parts import decode
from superinfer.scheduler.policies.step_state import Step


@part
def plan_slack(fleet: Fleet, ground: Step, number: int) -> bool:
    """Fill a domain's next step as the slack policy does; False, and nothing changed, where the scheduler has to."""
    its, shared = fleet.domains[number], fleet.shared
    running = its[of.RUNS]
    shown = shared[of.SHOWN] if shared[of.WAITING] else 0
    candidates = ground.candidates[: running + shown]
    candidates[:running] = fleet.members[number, :running]
    candidates[running:] = fleet.waiting[:shown]
    settle(fleet, ground, number)
    before, entered, stop = its[of.GROWN], shared[of.ENTERED], at.GO_ON
    state = ground.state
    while stop != at.DONE:
        step = Step(
            ground.counts,
            ground.times,
            candidates,
            ground.level_column,
            ground.constants,
            ground.points,
            ground.decay,
            ground.levels,
            ground.figures,
            state,
            ground.members,
            ground.slacks,
            fleet.chosen[number],
            fleet.growing[number][its[of.GROWN] :],
        )
        stop = compose(step)
        its[of.GROWN] += state[at.GROWN]
        if stop == at.DONE:
            break
        if stop == at.MAY_PREFILL:
            position = state[at.START] + state[at.POSITION]
            if state[at.PHASE] == at.LOST_ONES:
                position += state[at.LIVE]
            count = prefill(fleet, step, number, step.members[position], state[at.COUNT])
            if count >= 0:
                state[at.WENT_IN] = count > 0
                continue
        undo(fleet, step, number, before, entered)
        return False
    if state[at.TOKENS] == 0:
        return False
    keep(fleet, ground, number, before, entered)
    its[of.IS_SERVED] = 1
    return True


@part
def plan_budget(fleet: Fleet, ground: Step, number: int) -> bool:
    """Fill a domain's next step up to the token budget; False, and nothing changed, where the scheduler has to."""
    its, shared, state, counts = fleet.domains[number], fleet.shared, ground.state, ground.counts
    settle(fleet, ground, number)
    rows = fleet.ordered[number, : its[of.RUNS]]
    before, entered, position = its[of.GROWN], shared[of.ENTERED], 0
    while True:
        step = Step(
            counts,
            ground.times,
            ground.candidates,
            ground.level_column,
            ground.constants,
            ground.points,
            ground.decay,
            ground.levels,
            ground.figures,
            state,
            ground.members,
            ground.slacks,
            fleet.chosen[number],
            fleet.growing[number][its[of.GROWN] :],
        )
        state[at.GROWN] = 0
        position = decode(step, rows, position, STOP_SHORT | STOP_PREFILL, 0, math.inf)
        its[of.GROWN] += state[at.GROWN]
        if position == len(rows):
            break
        row = rows[position]
        is_prefilling = counts[row, COMPUTED] < counts[row, PREFILL_TARGET]
        left = state[at.MAX_STEP_TOKENS] - state[at.TOKENS]
        if not (is_prefilling and shared[of.KEEPS_ORDER]) or prefill(fleet, step, number, row, left) < 0:
            undo(fleet, step, number, before, entered)
            return False
        position += 1
    has_token = state[at.TOKENS] < state[at.MAX_STEP_TOKENS]
    may_enter = shared[of.WAITING] and has_token and state[at.RUNS] < state[at.MAX_RUNS]
    is_short = not has_token and not shared[of.KEEPS_ORDER]
    if state[at.TOKENS] == 0 or is_short or (may_enter and shared[of.LEAST_BLOCKS] <= state[at.FREE]):
        undo(fleet, step, number, before, entered)
        return False
    keep(fleet, ground, number, before, entered)
    return True


@part
def prefill(fleet: Fleet, step: Step, number: int, row: int, most: int) -> int:
    """As StepBuilder.prefill: how many tokens of a waiting or running sequence went in; −1 where that is for the
    scheduler to do.
    """
    counts, state, shared = step.counts, step.state, fleet.shared
    start, target, size = counts[row, COMPUTED], counts[row, PREFILL_TARGET], state[at.BLOCK_SIZE]
    count: int = min(most, target - start, state[at.MAX_STEP_TOKENS] - state[at.TOKENS])
    if count <= 0 or counts[row, PLANNED_IN] == state[at.STAMP]:
        return 0
    if counts[row, STATUS] == WAITING:
        blocks = -(-(target + 1) // size)
        if state[at.RUNS] >= state[at.MAX_RUNS] or blocks > state[at.FREE]:
            return 0
        if shared[of.IS_WATCHED] or start > 0 or shared[of.KIND] != of.SLACK_KIND:
            return -1
        entered = shared[of.ENTERED]
        fleet.entered[entered, 0], fleet.entered[entered, 1] = row, number
        fleet.entered_s[entered] = fleet.clock[of.NOW]
        shared[of.ENTERED] += 1
        fleet.members[number, state[at.RUNS]] = row
        state[at.RUNS] += 1
        state[at.FREE] -= blocks
        counts[row, STATUS], counts[row, BLOCKS] = RUNNING, blocks
    elif -(-(start + count) // size) > counts[row, BLOCKS]:
        return -1
    samples = start + count >= target
    chunk = fleet.chunks[number, state[at.CHUNKS]]
    chunk[of.ROW], chunk[of.START], chunk[of.COUNT], chunk[of.SAMPLES] = row, start, count, samples
    counts[row, COMPUTED] += count
    counts[row, PLANNED_OUTPUTS] += samples
    counts[row, IN_FLIGHT] += 1
    counts[row, PLANNED_IN] = state[at.STAMP]
    state[at.TOKENS] += count
    state[at.ROWS] += samples
    state[at.CHUNKS] += 1
    step.figures[at.PAIRS] += count * (start + (count + 1) / 2)
    return count


@part
def undo(fleet: Fleet, step: Step, number: int, grown: int, entered: int) -> None:
    """Take everything out of the step again: `grown` rows had a block before it, `entered` sequences had entered."""
    counts, state, shared, its = step.counts, step.state, fleet.shared, fleet.domains[number]
    for i in range(state[at.DECODES]):
        row = fleet.chosen[number, i]
        counts[row, COMPUTED] -= 1
        counts[row, PLANNED_OUTPUTS] -= 1
        counts[row, IN_FLIGHT] -= 1
        counts[row, PLANNED_IN] = 0
    for i in range(grown, its[of.GROWN]):
        counts[fleet.growing[number, i], BLOCKS] -= 1
    its[of.GROWN] = grown
    for i in range(state[at.CHUNKS]):
        chunk = fleet.chunks[number, i]
        row = chunk[of.ROW]
        counts[row, COMPUTED] = chunk[of.START]
        counts[row, PLANNED_OUTPUTS] -= chunk[of.SAMPLES]
        counts[row, IN_FLIGHT] -= 1
        counts[row, PLANNED_IN] = 0
    for i in range(entered, shared[of.ENTERED]):
        row = fleet.entered[i, 0]
        counts[row, STATUS], counts[row, BLOCKS] = WAITING, 0
    shared[of.ENTERED] = entered


@part
def keep(fleet: Fleet, ground: Step, number: int, grown: int, entered: int) -> None:
    """The step is complete: the domain has what it holds, and who entered waits no more."""
    its, state, shared = fleet.domains[number], ground.state, fleet.shared
    its[of.TOKENS], its[of.DECODES], its[of.CONTEXT] = state[at.TOKENS], state[at.DECODES], state[at.CONTEXT]
    its[of.ROWS], its[of.CHUNKS] = state[at.ROWS], state[at.CHUNKS]
    fleet.flights[number, of.PAIRS] = ground.figures[at.PAIRS]
    its[of.FREE], its[of.RUNS] = state[at.FREE], state[at.RUNS]
    its[of.HAS_FINISHED] = 0
    went = shared[of.ENTERED] - entered
    if fleet.light.cells[li.IS_LIGHT]:
        known_growing(fleet, number, grown)
        enter(fleet, ground.counts, number, entered)
    if not went:
        return
    kept = 0
    for i in range(shared[of.SHOWN]):
        row = fleet.waiting[i]
        if ground.counts[row, STATUS] == WAITING:
            fleet.waiting[kept] = row
            kept += 1
    if shared[of.WAITING] > shared[of.SHOWN]:
        shared[of.IS_STALE] = 1
    shared[of.WAITING] -= went
    shared[of.SHOWN] = kept


@part
def settle(fleet: Fleet, ground: Step, number: int) -> None:
    """A new step, with what is so for the whole of it: as SlackStep.begin."""
    its, shared, clock = fleet.domains[number], fleet.shared, fleet.clock
    state, figures, now = ground.state, ground.figures, fleet.clock[of.NOW]
    correction, upper = fleet.speeds[its[of.SPEED_ROW], 0], fleet.speeds[its[of.SPEED_ROW], 1]
    fleet.stamps[0] += 1
    state[:] = 0
    state[at.PHASE], state[at.POSITION], state[at.STAMP] = at.CLASS, -1, fleet.stamps[0]
    state[at.FREE], state[at.AIR], state[at.RUNS] = its[of.FREE], its[of.AIR], its[of.RUNS]
    state[at.MAX_RUNS], state[at.MAX_STEP_TOKENS] = shared[of.MAX_RUNS], shared[of.MAX_TOKENS]
    state[at.BLOCK_SIZE], state[at.LOOSE_LIMIT] = shared[of.BLOCK_SIZE], shared[of.LOOSE]
    state[at.EFFICIENT_CHUNK] = shared[of.EFFICIENT]
    figures[at.NOW], figures[at.CORRECTION], figures[at.UPPER_RATIO] = now, correction, max(upper, 1.0)
    figures[at.PAIRS], figures[at.EVEN_S], figures[at.WHOLE_S] = 0.0, math.inf, math.inf
    figures[at.BURST_SHARE], figures[at.MARGIN_S] = clock[of.BURST_SHARE], clock[of.MARGIN_S]
    rise_s = linear_s(ground.points, MANY_PROMPT_TOKENS) - linear_s(ground.points, FEW_PROMPT_TOKENS)
    figures[at.PROMPT_TOKEN_S] = correction * rise_s / (MANY_PROMPT_TOKENS - FEW_PROMPT_TOKENS)
    if shared[of.KIND] == of.SLACK_KIND:
        take_shares(fleet, ground.levels, now)


@part
def take_shares(fleet: Fleet, levels: FloatArray, now: float) -> None:
    """What arrivals have been taking of the device, class by class: as UrgencyClasses.settle."""
    clock, loads, spans = fleet.clock, fleet.loads, fleet.spans
    for level in range(len(levels)):
        levels[level, at.RESERVE_SHARE] = 0.0
        levels[level, at.IDLE_CAP_S] = math.inf
    for i in range(len(loads)):
        begin, end, window_s = spans[i, 0], spans[i, 1], loads[i, of.WINDOW_S]
        while begin < end and fleet.arrivals[i, begin] <= now - window_s:
            begin += 1
        spans[i, 0] = begin
        span_s = min(max(now - loads[i, of.FIRST_S], loads[i, of.WARM_S]), window_s)
        per_second, level = (end - begin) / span_s, int(loads[i, of.LEVEL])
        levels[level, at.RESERVE_SHARE] += per_second * loads[i, of.DEVICE_S]
        slack_s = loads[i, of.INITIAL_SLACK_S]
        if per_second > 0.0 and slack_s > 0.0 and level + 1 < len(levels):
            levels[level + 1, at.IDLE_CAP_S] = min(levels[level + 1, at.IDLE_CAP_S], slack_s)
    taken = share = 0.0
    least_s = math.inf
    for level in range(len(levels)):
        levels[level, at.SHARE_LEFT] = 1.0 - min(share, at.MOST_BUSY)
        taken = levels[level, at.RESERVE_SHARE] + taken if level else levels[level, at.RESERVE_SHARE]
        share = taken / fleet.shared[of.DOMAINS_UP]
        least_s = min(least_s, levels[level, at.IDLE_CAP_S])
        levels[level, at.RESERVE_SHARE] = clock[of.ALPHA] * share
        levels[level, at.IDLE_CAP_S] = clock[of.IDLE_SHARE] * least_s
