"""Compiled: the clock of all domains, from one event to the next that is not theirs alone."""

from __future__ import annotations

import math

from superinfer.executor.simulation import fleet_state as of
from superinfer.executor.simulation import light_state as li
from superinfer.executor.simulation.fleet_decode import all_decode
from superinfer.executor.simulation.fleet_plan import plan_budget, plan_slack
from superinfer.executor.simulation.fleet_state import Fleet
from superinfer.executor.simulation.fleet_steps import land, take_off
from superinfer.executor.simulation.light_kernels import arrive, has_room, next_arrival_s, show_waiting
from superinfer.scheduler.borrowed import borrowed
from superinfer.scheduler.kernels import compiled, part
from superinfer.scheduler.policies.step_state import Step


@compiled
def advance(fleet: Fleet, ground: Step, horizon_s: float) -> int:
    """Let time go on until something has to be done elsewhere; says what. What is due at the horizon comes before what
    is due here at the same time.

    Domains plan once everything that is due at a moment has happened, in their order, those again that had nothing to
    do at the last. A request that comes goes before all else that is due at the same time.
    """
    fleet, ground = borrowed(fleet), borrowed(ground)
    shared, clock, domains, cells = fleet.shared, fleet.clock, fleet.domains, fleet.light.cells
    while True:
        following, end_s = first_to_end(fleet)
        arrival_s = next_arrival_s(fleet.light)
        until_s = min(arrival_s, horizon_s)
        if shared[of.PHASE] == of.LOOK:
            shared[of.PHASE] = of.PLANNING if min(end_s, until_s) > clock[of.NOW] else of.RUN_ON
            shared[of.FROM] = 0
        if shared[of.PHASE] == of.PLANNING:
            while shared[of.FROM] < len(domains):
                number = shared[of.FROM]
                reason = plan_next(fleet, ground, number) if domains[number, of.IS_IDLE] else of.AT_HORIZON
                if reason != of.AT_HORIZON:
                    shared[of.DOMAIN] = number
                    return reason
                shared[of.FROM] += 1
            shared[of.PHASE] = of.RUN_ON
            continue
        if end_s >= until_s or end_s == math.inf:
            if arrival_s > horizon_s or arrival_s == math.inf:
                return of.AT_HORIZON
            if not has_room(fleet):
                return of.NEEDS_ROOM
            clock[of.NOW] = arrival_s
            arrive(fleet, ground)
            shared[of.PHASE] = of.LOOK
            if cells[li.ARRIVED] == cells[li.PENDING]:
                return of.NEEDS_ARRIVALS
            continue
        clock[of.NOW] = end_s
        land(fleet, following, ground.counts, ground.times, ground.constants, ground.points)
        shared[of.PHASE] = of.LOOK
        if shared[of.ENDED] or shared[of.IS_WATCHED]:
            shared[of.DOMAIN] = following
            return of.HAS_ENDED


@part
def first_to_end(fleet: Fleet) -> tuple[int, float]:
    """The domain whose step ends first, at equal times that whose began first, and when; infinite without any."""
    following, end_s = -1, math.inf
    for number in range(len(fleet.domains)):
        if not fleet.domains[number, of.IS_FLYING]:
            continue
        its_s = fleet.flights[number, of.END_S]
        if (
            following < 0
            or its_s < end_s
            or (its_s == end_s and fleet.domains[number, of.ORDER] < fleet.domains[following, of.ORDER])
        ):
            following, end_s = number, its_s
    return following, end_s


@part
def plan_next(fleet: Fleet, ground: Step, number: int) -> int:
    """Plan the next step of an idle domain, where it has anything to do and the scheduler has not; AT_HORIZON when that
    is done.
    """
    its, shared = fleet.domains[number], fleet.shared
    if its[of.IS_ASKED]:
        take_off(fleet, number, ground.constants, ground.points)
        return of.AT_HORIZON
    has_work = its[of.RUNS] > 0 or its[of.HAS_ROTATED] or shared[of.WAITING] > 0
    if its[of.MODE] == of.DOWN or not (has_work or its[of.HAS_FINISHED]):
        return of.AT_HORIZON
    if its[of.NOISE_USED] == fleet.noise.shape[1]:
        return of.NEEDS_NOISE
    is_full = its[of.GROWN] >= of.NEWS or shared[of.BEGUN] >= of.NEWS or shared[of.ENTERED] >= of.NEWS
    if is_full or fleet.light.cells[li.LOGGED] >= li.LOG:
        return of.NEEDS_ROOM
    is_asked = its[of.MODE] == of.ASKS or shared[of.KIND] == of.OTHER_KIND or its[of.SPEED_ROW] < 0
    if is_asked or its[of.HAS_ROTATED] or (shared[of.HAS_MAP] and shared[of.WAITING]):
        return of.MUST_PLAN
    if not has_work:
        its[of.TOKENS] = its[of.DECODES] = its[of.CONTEXT] = its[of.ROWS] = its[of.CHUNKS] = its[of.HAS_FINISHED] = 0
        take_off(fleet, number, ground.constants, ground.points)
        return of.AT_HORIZON
    if shared[of.KIND] == of.SLACK_KIND and all_decode(fleet, ground, number):
        is_planned = True
    elif shared[of.KIND] == of.SLACK_KIND:
        if shared[of.IS_STALE] or fleet.clock[of.NOW] >= fleet.clock[of.LAPSES_S]:
            if not fleet.light.cells[li.IS_LIGHT]:
                return of.NEEDS_WAITING
            show_waiting(fleet, ground.times)
        is_planned = plan_slack(fleet, ground, number)
    else:
        is_planned = plan_budget(fleet, ground, number)
    if not is_planned:
        return of.MUST_PLAN
    take_off(fleet, number, ground.constants, ground.points)
    return of.AT_HORIZON
