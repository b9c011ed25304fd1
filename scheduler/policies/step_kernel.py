"""The composition of a slack step as one compiled loop over the classes. It stops wherever a sequence would enter, come
back or give way: that is for `superinfer.scheduler.policies.slack` to do, and then the loop goes on.

The order within a class is only worked out where it matters: where all decodes fit it does not.
"""

from __future__ import annotations

import math

from superinfer.scheduler.columns import (
    ARRIVAL_S,
    COMPUTED,
    DEADLINE_S,
    PREFILL_TARGET,
    ROTATED,
    RUNNING,
    STATUS,
    IntArray,
)
from superinfer.scheduler.kernels import (
    STOP_CROWDED,
    STOP_MAY_PREFILL,
    STOP_ROTATED,
    STOP_ROTATED_PREFILL,
    STOP_SHORT,
    compiled,
)
from superinfer.scheduler.policies import step_state as at
from superinfer.scheduler.policies.class_order import (
    assess_class,
    grow_by_risk,
    sort_by_risk,
    split_class,
)
from superinfer.scheduler.policies.slack_kernels import (
    needed_pace_s,
)
from superinfer.scheduler.policies.step_parts import (
    all_decodes_fit,
    allowed_s,
    burst_s,
    chunk_within,
    decode,
    following_prefill,
    idle_cap_s,
    predicted_s,
    runs_below,
)
from superinfer.scheduler.policies.step_state import Step

PATIENCE = 0.3
"""Share of its allowed time that a less urgent request's slack must exceed for its prefill to wait for a good chunk."""
LOOSE_SHARE = 0.75
"""Share of the sequences a domain may run beyond which less urgent ones do not enter: requests that were given up hold
their KV, and must not keep urgent ones out."""


@compiled
def compose(step: Step) -> int:
    """Go on with the step until it is complete or something is for the caller to do; says which."""
    state = step.state
    state[at.GROWN] = 0
    stop = at.GO_ON
    while stop == at.GO_ON:
        if state[at.LEVEL] == len(step.levels):
            return at.DONE
        first, live = state[at.START], state[at.LIVE]
        rows = step.members[first : first + live]
        phase = state[at.PHASE]
        if phase == at.CLASS:
            begin_class(step)
        elif phase == at.FIRST_DECODES:
            stop = first_decodes(step, rows)
        elif phase == at.FIRST_PREFILLS:
            stop = first_prefills(step, rows)
        elif phase == at.WITHIN_DECODES:
            stop = within_decodes(step, rows)
        elif phase == at.WITHIN_PREFILLS:
            stop = within_prefills(step, rows)
        elif phase == at.ALLOWANCES:
            limit_step(step, rows)
        elif phase == at.LOST_ONES:
            stop = ride_along(step, step.members[first + live : first + live + state[at.LOST]])
        else:
            stop = end_class(step, rows)
    return stop


@compiled
def enter_phase(state: IntArray, phase: int) -> None:
    """Begin a phase with its first member."""
    state[at.PHASE], state[at.POSITION], state[at.WENT_IN] = phase, -1, 0


@compiled
def begin_class(step: Step) -> None:
    """Find the members of the class, and how they are served."""
    state, figures, level, first = step.state, step.figures, step.state[at.LEVEL], step.state[at.START]
    live, lost = assess_class(
        step.counts,
        step.times,
        step.candidates,
        step.level_column,
        level,
        step.constants,
        step.points,
        figures[at.CORRECTION],
        figures[at.NOW],
        step.members[first:],
        step.slacks[first:],
    )
    state[at.LIVE], state[at.LOST], state[at.TOKENS_BEFORE] = live, lost, state[at.TOKENS]
    step.levels[level, at.FIRST_MEMBER], step.levels[level, at.LIVE_MEMBERS] = first, live
    figures[at.CAP_S], state[at.MIN_CHUNK] = math.inf, state[at.EFFICIENT_CHUNK]
    is_first = figures[at.EVEN_S] == math.inf and level == 0
    if figures[at.EVEN_S] == math.inf and not is_first:
        figures[at.CAP_S], state[at.MIN_CHUNK] = idle_cap_s(step, level), 1
    if live == 0:
        enter_phase(state, at.ALLOWANCES)
    elif is_first:
        begin_first(step, step.members[first : first + live])
    else:
        begin_within(step, step.members[first : first + live])


@compiled
def begin_first(step: Step, rows: IntArray) -> None:
    """The most urgent class present: every decode, then prefills, looser work giving way where memory is short."""
    counts, state = step.counts, step.state
    slacks = step.slacks[state[at.START] : state[at.START] + len(rows)]
    state[at.MAY_ASK] = runs_below(step)
    if not all_decodes_fit(counts, rows, state):
        sort_by_risk(counts, step.times, step.decay, rows, slacks)
        enter_phase(state, at.FIRST_DECODES)
        return
    decode(step, rows, 0, 0, 0, math.inf)
    grow_by_risk(counts, step.times, step.decay, rows, slacks, step.growing[: state[at.GROWN]])
    if following_prefill(step, rows, 0, state[at.RUNS] < state[at.MAX_RUNS]) < len(rows):
        sort_by_risk(counts, step.times, step.decay, rows, slacks)
        step.figures[at.LIMIT_S] = math.inf
        enter_phase(state, at.FIRST_PREFILLS)
    else:
        enter_phase(state, at.ALLOWANCES)


@compiled
def first_decodes(step: Step, rows: IntArray) -> int:
    """Decodes by risk; a stop at whoever comes back, or lacks room that others could give."""
    state = step.state
    stops = STOP_ROTATED | STOP_ROTATED_PREFILL
    if state[at.MAY_ASK]:
        stops |= STOP_SHORT | STOP_CROWDED
    state[at.POSITION] = decode(step, rows, state[at.POSITION] + 1, stops, 0, math.inf)
    if state[at.POSITION] < len(rows):
        return at.NEEDS_ROOM
    step.figures[at.LIMIT_S] = math.inf
    enter_phase(state, at.FIRST_PREFILLS)
    return at.GO_ON


@compiled
def first_prefills(step: Step, rows: IntArray) -> int:
    """A prefill goes in whole unless it would cost a more critical request of the class its deadline: until the last
    one that can go in, each request limits those after it.
    """
    state, figures = step.state, step.figures
    begin = max(state[at.POSITION], 0)
    position = following_prefill(step, rows, state[at.POSITION] + 1, state[at.RUNS] < state[at.MAX_RUNS])
    if position == len(rows):
        enter_phase(state, at.ALLOWANCES)
        return at.GO_ON
    even_s, _ = allowed_s(step, rows[begin:position], 0.0, 0.0)
    figures[at.LIMIT_S] = min(figures[at.LIMIT_S], even_s)
    state[at.POSITION], state[at.COUNT] = position, chunk_within(step, rows[position], figures[at.LIMIT_S])
    return at.MAY_PREFILL if state[at.COUNT] > 0 else at.GO_ON


@compiled
def begin_within(step: Step, rows: IntArray) -> None:
    """Less urgent requests within what the urgent ones bear, least work left first: decodes, then a prefill chunk.

    Both may spend a share of the slack at once: a decode brings a request that has already cost its prefill nearer to
    its end, and large chunks use the device better than small ones.
    """
    state, figures = step.state, step.figures
    slacks = step.slacks[state[at.START] : state[at.START] + len(rows)]
    sort_by_risk(step.counts, step.times, step.decay, rows, slacks)
    state[at.KEPT] = split_class(
        step.counts,
        step.times,
        rows,
        slacks,
        figures[at.NOW],
        step.levels[state[at.LEVEL], at.SHARE_LEFT],
        state[at.LOOSE_LIMIT],
        step.constants,
        step.points,
        figures[at.CORRECTION],
        figures[at.PROMPT_TOKEN_S],
    )
    running = 0
    for row in rows[: state[at.KEPT]]:
        running += step.counts[row, STATUS] == RUNNING
    state[at.MAY_ENTER] = running < state[at.LOOSE_LIMIT] and state[at.RUNS] < LOOSE_SHARE * state[at.MAX_RUNS]
    figures[at.LIMIT_S] = burst_s(step)
    enter_phase(state, at.WITHIN_DECODES)


@compiled
def within_decodes(step: Step, rows: IntArray) -> int:
    """Decodes, and a stop at whoever could come back; then what limits a chunk."""
    state, figures = step.state, step.figures
    stops = STOP_ROTATED | STOP_ROTATED_PREFILL
    state[at.POSITION] = decode(step, rows, state[at.POSITION] + 1, stops, state[at.AIR], figures[at.LIMIT_S])
    if state[at.POSITION] < len(rows):
        return at.MAY_RETURN
    figures[at.LIMIT_S] = burst_s(step)
    # The longest step at which those of the class that decode still make it, in the time that more urgent work leaves.
    pace_s = needed_pace_s(step.counts, step.times, rows[: state[at.KEPT]], figures[at.NOW])
    if pace_s < math.inf:
        figures[at.LIMIT_S] = min(figures[at.LIMIT_S], step.levels[state[at.LEVEL], at.SHARE_LEFT] * pace_s)
    has_token = state[at.TOKENS] < state[at.MAX_STEP_TOKENS]
    is_wide = has_token and predicted_s(step, 1, 0, 1.0, 1) <= figures[at.LIMIT_S]
    enter_phase(state, at.WITHIN_PREFILLS if is_wide else at.ALLOWANCES)
    return at.GO_ON


@compiled
def within_prefills(step: Step, rows: IntArray) -> int:
    """One chunk: the first that can go in. One that is too small to be worth it only for a request that cannot wait for
    a better moment.
    """
    counts, times, state = step.counts, step.times, step.state
    position = following_prefill(step, rows, state[at.POSITION] + 1, state[at.MAY_ENTER] != 0)
    if state[at.WENT_IN] or position == len(rows):
        enter_phase(state, at.ALLOWANCES)
        return at.GO_ON
    row = rows[position]
    count = chunk_within(step, row, step.figures[at.LIMIT_S])
    is_small = count < min(state[at.MIN_CHUNK], counts[row, PREFILL_TARGET] - counts[row, COMPUTED])
    if is_small and step.slacks[state[at.START] + position] > PATIENCE * (
        times[row, DEADLINE_S] - times[row, ARRIVAL_S]
    ):
        enter_phase(state, at.ALLOWANCES)
        return at.GO_ON
    state[at.POSITION], state[at.COUNT] = position, count
    return at.MAY_PREFILL if count > 0 else at.GO_ON


@compiled
def limit_step(step: Step, rows: IntArray) -> None:
    """What the live ones can bear, as they are now, limits all that follows."""
    state, figures = step.state, step.figures
    even_s, whole_s = allowed_s(step, rows, step.levels[state[at.LEVEL], at.RESERVE_SHARE], figures[at.MARGIN_S])
    figures[at.EVEN_S], figures[at.WHOLE_S] = min(figures[at.EVEN_S], even_s), min(figures[at.WHOLE_S], whole_s)
    enter_phase(state, at.LOST_ONES)


@compiled
def ride_along(step: Step, rows: IntArray) -> int:
    """Lost requests after the live ones of their class, within what those allow."""
    state, figures = step.state, step.figures
    limit_s = figures[at.LIMIT_S] = min(figures[at.EVEN_S], figures[at.CAP_S])
    position = state[at.POSITION] + 1
    may_prefill = predicted_s(step, 1, 0, 1.0, 1) <= limit_s
    if position < len(rows) and (may_prefill or predicted_s(step, 1, 1, 0.0, 0) <= limit_s):
        stops = STOP_ROTATED | STOP_MAY_PREFILL if may_prefill else STOP_ROTATED
        position = decode(step, rows, position, stops, state[at.AIR], limit_s)
    else:
        position = len(rows)
    if position == len(rows):
        enter_phase(state, at.TURN)
        return at.GO_ON
    state[at.POSITION] = position
    if step.counts[rows[position], STATUS] == ROTATED:
        return at.MAY_RETURN
    state[at.COUNT] = chunk_within(step, rows[position], limit_s)
    return at.MAY_PREFILL if state[at.COUNT] > 0 else at.GO_ON


@compiled
def end_class(step: Step, rows: IntArray) -> int:
    """On to the next class; a stop where best effort got nothing."""
    state = step.state
    is_starved = len(rows) > 0 and state[at.TOKENS] == state[at.TOKENS_BEFORE]
    may_turn = is_starved and step.levels[state[at.LEVEL], at.IS_BEST_EFFORT] > 0.0
    if may_turn:
        sort_by_risk(
            step.counts, step.times, step.decay, rows, step.slacks[state[at.START] : state[at.START] + len(rows)]
        )
    state[at.START] += len(rows)
    state[at.LEVEL] += 1
    state[at.LIVE] = 0
    enter_phase(state, at.CLASS)
    return at.MAY_TAKE_TURN if may_turn else at.GO_ON
