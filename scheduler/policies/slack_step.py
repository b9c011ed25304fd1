"""The Python side of a slack step: what the compiled loop works on, filled anew for each plan, and what it says."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from superinfer.scheduler.columns import IntArray, float_cells, int_cells
from superinfer.scheduler.config import SchedulerConfig
from superinfer.scheduler.decay import DecayProfile
from superinfer.scheduler.policies import step_state as at
from superinfer.scheduler.policies.class_order import assess_class, sort_by_risk
from superinfer.scheduler.policies.planner_config import PlannerConfig
from superinfer.scheduler.policies.slack_kernels import allowance_s, decay_columns
from superinfer.scheduler.policies.step_kernel import compose
from superinfer.scheduler.policies.urgency import UrgencyClasses
from superinfer.scheduler.sequence import SequenceState
from superinfer.scheduler.step_builder import StepBuilder
from superinfer.scheduler.step_memory import Ground


class SlackStep:
    """One for all the steps of a policy, one step at a time."""

    def __init__(self, decay: DecayProfile, planner: PlannerConfig, classes: UrgencyClasses) -> None:
        self._planner, self._classes = planner, classes
        self._decay = decay_columns(decay)
        self._levels = np.empty((0, at.LEVEL_FIGURES), np.float64)
        self._level_cells = float_cells(self._levels)
        self._levels_at: IntArray | None = None
        self._config: SchedulerConfig | None = None
        self._most = 0
        self._members, self._slacks = np.empty(0, np.int64), np.empty(0, np.float64)
        self._state_array, self._figure_array = np.zeros(at.STATE, np.int64), np.zeros(at.FIGURES, np.float64)
        self._state, self._figures = int_cells(self._state_array), float_cells(self._figure_array)
        self._parts: list[IntArray] = []
        self._candidates = np.empty(0, np.int64)

    def begin(self, builder: StepBuilder) -> None:
        """A new step."""
        self._builder = builder
        self._settle(builder.ground, builder.now, builder.domains_up)
        state = self._state
        state[at.PHASE], state[at.LEVEL], state[at.START], state[at.LIVE], state[at.POSITION] = at.CLASS, 0, 0, 0, -1
        state[at.STAMP], state[at.AIR] = builder.stamp, builder.air_blocks
        figures = self._figures
        figures[at.EVEN_S] = figures[at.WHOLE_S] = math.inf
        figures[at.PROMPT_TOKEN_S] = builder.model.prefill_token_s
        self.look_again()

    def _settle(self, ground: Ground, now: float, domains_up: int) -> None:
        """What is so for the whole plan."""
        classes, model, planner, config = self._classes, ground.model, self._planner, ground.config
        if len(self._levels) != classes.count:
            self._levels = np.zeros((classes.count, at.LEVEL_FIGURES), np.float64)
            self._level_cells = float_cells(self._levels)
        request_s, alpha, idle_share = ground.request_s, planner.reserve_alpha, planner.idle_step_share
        if request_s is None:
            classes.settle(self._levels, now, domains_up, alpha, idle_share)
        else:
            above, cells, base = 0.0, self._level_cells, 0
            for share, initial_slack_s in classes.on(now, request_s):
                cells[base + at.SHARE_LEFT] = 1.0 - min(above, at.MOST_BUSY)
                cells[base + at.RESERVE_SHARE] = alpha * share
                cells[base + at.IDLE_CAP_S] = idle_share * initial_slack_s
                above, base = share, base + at.LEVEL_FIGURES
        if self._levels_at is not classes.level_column:
            self._levels_at = classes.level_column
            for level in range(classes.count):
                self._level_cells[level * at.LEVEL_FIGURES + at.IS_BEST_EFFORT] = classes.is_best_effort(level)
        state, figures = self._state, self._figures
        if config is not self._config:
            self._config, self._most = config, planner.loose_limit(config.max_running)
            state[at.MAX_RUNS], state[at.MAX_STEP_TOKENS] = config.max_running, config.max_step_tokens
            state[at.BLOCK_SIZE], state[at.EFFICIENT_CHUNK] = config.block_size, ground.efficient_chunk
            state[at.LOOSE_LIMIT] = self._most
            figures[at.BURST_SHARE] = planner.burst_share
        figures[at.NOW], figures[at.CORRECTION], figures[at.UPPER_RATIO] = now, model.correction, model.upper_ratio
        figures[at.MARGIN_S] = planner.margin_share * classes.least_allowed_s

    def look_again(self) -> None:
        """Find anew who could have work: those with KV, and the first that wait under each contract."""
        builder, queues = self._builder, self._builder.queues
        parts = [builder.domain.running.rows]
        if builder.domain.rotated:
            parts.append(builder.domain.rotated.rows)
        if queues.count:
            parts += queues.front_rows(self._classes.levels, builder.now, 4 * self._most, self._most)
        if [*map(id, parts)] != [*map(id, self._parts)]:
            self._parts, self._candidates = parts, parts[0] if len(parts) == 1 else np.concatenate(parts)
        if len(self._members) < self._state[at.START] + len(self._candidates):
            room = 2 * (self._state[at.START] + len(self._candidates))
            self._members, self._slacks = np.resize(self._members, room), np.resize(self._slacks, room)
        self._step = self._on(builder.ground)

    def _on(self, ground: Ground) -> at.Step:
        return at.Step(
            ground.table.counts,
            ground.table.times,
            self._candidates,
            self._classes.level_column,
            ground.constants,
            ground.points,
            self._decay,
            self._levels,
            self._figure_array,
            self._state_array,
            self._members,
            self._slacks,
            ground.chosen,
            ground.growing,
        )

    def go_on(self) -> int:
        """Compose until the step is complete or something is to be done; which, as in `step_state`."""
        state, figures, builder = self._state, self._figures, self._builder
        shape = builder.shape
        state[at.TOKENS], state[at.DECODES], state[at.CONTEXT] = shape.tokens, shape.decodes, shape.decode_context
        state[at.ROWS], state[at.CHUNKS], figures[at.PAIRS] = shape.rows, shape.chunks, shape.prefill_pairs
        state[at.FREE], state[at.RUNS] = builder.domain.device_blocks.free, len(builder.domain.running)
        stop: int = compose(self._step)
        shape.tokens, shape.decodes, shape.decode_context = state[at.TOKENS], state[at.DECODES], state[at.CONTEXT]
        shape.rows = state[at.ROWS]
        builder.grow_decodes(state[at.GROWN])
        return stop

    @property
    def stopped_at(self) -> SequenceState:
        """The member at which it stopped."""
        position = self._state[at.START] + self._state[at.POSITION]
        if self._state[at.PHASE] == at.LOST_ONES:
            position += self._state[at.LIVE]
        return self._builder.owner(self._members[position])

    @property
    def chunk(self) -> int:
        """Prompt tokens of it that may go in."""
        return self._state[at.COUNT]

    @property
    def limit_s(self) -> float:
        """How long the step may become."""
        return self._figures[at.LIMIT_S]

    @property
    def level(self) -> int:
        """The class that is being served."""
        return self._state[at.LEVEL]

    @property
    def may_ask(self) -> bool:
        """Whether a sequence of a less urgent class runs, and could give way."""
        return bool(self._state[at.MAY_ASK])

    @may_ask.setter
    def may_ask(self, may_ask: bool) -> None:
        self._state[at.MAY_ASK] = may_ask

    @property
    def went_in(self) -> bool:
        """Whether the chunk went in."""
        return bool(self._state[at.WENT_IN])

    @went_in.setter
    def went_in(self, went_in: bool) -> None:
        self._state[at.WENT_IN] = went_in

    def starved(self) -> Iterator[SequenceState]:
        """The members of the class of best effort that got nothing, in order."""
        return map(self._builder.owner, self._live(self._state[at.LEVEL] - 1).tolist())

    def spare_s(self) -> float:
        """How much longer the step could become if all live members so far spent all their slack on it."""
        rows = np.concatenate([self._live(level) for level in range(self._state[at.LEVEL])])
        ground, table, figures = self._builder.ground, self._builder.table, self._figures
        _, whole_s = allowance_s(
            table.counts,
            table.times,
            rows,
            ground.constants,
            ground.points,
            figures[at.CORRECTION],
            figures[at.NOW],
            self._decay,
            0.0,
            0.0,
            figures[at.UPPER_RATIO],
        )
        return whole_s - self._builder.step_s

    def in_order(self, level: int) -> list[SequenceState]:
        """All of a class that could have work: those that can make it, by risk, then the lost ones."""
        self._state[at.START] = 0
        self.look_again()
        ground, table, figures = self._builder.ground, self._builder.table, self._figures
        live, lost = assess_class(
            table.counts,
            table.times,
            self._candidates,
            self._classes.level_column,
            level,
            ground.constants,
            ground.points,
            figures[at.CORRECTION],
            figures[at.NOW],
            self._members,
            self._slacks,
        )
        sort_by_risk(table.counts, table.times, self._decay, self._members[:live], self._slacks[:live])
        return [self._builder.owner(row) for row in self._members[: live + lost].tolist()]

    def _live(self, level: int) -> IntArray:
        first, live = self._levels[level, at.FIRST_MEMBER : at.LIVE_MEMBERS + 1]
        return self._members[int(first) : int(first + live)]
