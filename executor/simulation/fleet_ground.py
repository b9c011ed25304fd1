"""Fills the tables of the compiled event loop from the scheduler's objects, when they have changed."""

from __future__ import annotations

import math

import numpy as np

from superinfer.executor.simulated import NOISE_DRAWN
from superinfer.executor.simulation import fleet_state as of
from superinfer.executor.simulation.fleet_state import empty_fleet
from superinfer.executor.simulation.light_state import empty_light
from superinfer.scheduler.columns import FloatArray, IntArray
from superinfer.scheduler.domain import DomainState, InFlightStep
from superinfer.scheduler.policies import step_state as at
from superinfer.scheduler.policies.base import Policy
from superinfer.scheduler.policies.budget import BudgetPolicy
from superinfer.scheduler.policies.slack import SlackPolicy
from superinfer.scheduler.policies.slack_kernels import decay_columns
from superinfer.scheduler.policies.step_state import Step
from superinfer.scheduler.scheduler import Scheduler

ROOM = 256
"""Requests that may be shown waiting, to begin with."""


def kind_of(policy: Policy) -> int:
    """How a policy composes: as the compiled loop can, or in a way of its own."""
    if type(policy) is SlackPolicy:
        return of.SLACK_KIND
    if not isinstance(policy, BudgetPolicy):
        return of.OTHER_KIND
    kind, plain = type(policy), BudgetPolicy
    parts = (kind.compose, kind.serve_running, kind.bring_in)
    return of.BUDGET_KIND if parts == (plain.compose, plain.serve_running, plain.bring_in) else of.OTHER_KIND


class FleetGround:
    """The tables, `fleet` and `step`; `shared` and `clock` are parts of the first. `rows` says where a contract's load
    is.
    """

    def __init__(self, scheduler: Scheduler, domain_ids: list[str], overhead_s: float) -> None:
        config, table = scheduler.config, scheduler.table
        self.scheduler, self._ids, self._policy = scheduler, domain_ids, scheduler.policy
        self.fleet = empty_fleet(
            len(domain_ids),
            config.max_running,
            config.max_step_tokens,
            NOISE_DRAWN,
            scheduler.speeds.table,
            table.stamps,
            empty_light((len(domain_ids) + 1) * (config.max_step_tokens + 1)),
        )
        self.shared, self.clock = self.fleet.shared, self.fleet.clock
        shared, clock = self.shared, self.clock
        shared[of.PHASE] = of.RUN_ON
        shared[of.KIND] = kind_of(self._policy)
        shared[of.MAX_RUNS], shared[of.MAX_TOKENS] = config.max_running, config.max_step_tokens
        shared[of.BLOCK_SIZE], shared[of.HAS_MAP] = config.block_size, scheduler.assignment.has_map
        clock[of.OVERHEAD_S], clock[of.GAIN], clock[of.LAPSES_S] = overhead_s, scheduler.model.correction_gain, math.inf
        policy, self._most, self._decay = self._policy, 0, np.zeros((1, 4), np.float64)
        self._keeps_order = False
        self.rows: dict[str, int] = {}
        if isinstance(policy, SlackPolicy):
            self._most = policy.planner.loose_limit(config.max_running)
            self._decay = decay_columns(policy.decay)
            shared[of.LOOSE], shared[of.EFFICIENT] = self._most, scheduler.model.efficient_chunk
            clock[of.ALPHA], clock[of.IDLE_SHARE] = policy.planner.reserve_alpha, policy.planner.idle_step_share
            clock[of.BURST_SHARE] = policy.planner.burst_share
        elif isinstance(policy, BudgetPolicy):
            self._keeps_order = type(policy).running_rows is BudgetPolicy.running_rows
            shared[of.KEEPS_ORDER] = self._keeps_order
        self._levels = np.zeros((0, at.LEVEL_FIGURES), np.float64)
        self._nobody = np.zeros(0, np.int64)
        self._state, self._figures = np.zeros(at.STATE, np.int64), np.zeros(at.FIGURES, np.float64)
        self._make_room(ROOM)
        for number in range(len(domain_ids)):
            self.show_domain(number, of.COMPILED)
            self.fleet.domains[number, of.IS_IDLE] = 1
            self.fleet.domains[number, of.NOISE_USED] = NOISE_DRAWN
        self.step = self._step()

    def look(self) -> None:
        """Something has happened: domains may plan."""
        self.shared[of.PHASE] = of.LOOK
        self.shared[of.IS_WATCHED] = self.scheduler.has_suspects
        self.refresh()

    def refresh(self) -> None:
        """The scheduler's tables may have been replaced."""
        scheduler = self.scheduler
        if self.step.counts is not scheduler.table.counts or self.fleet.speeds is not scheduler.speeds.table:
            self.fleet = self.fleet._replace(speeds=scheduler.speeds.table)
            self.step = self._step()

    def show_domain(self, number: int, mode: int | None = None) -> None:
        """A domain's sequences, blocks and speed."""
        domain, its = self._domain(number), self.fleet.domains[number]
        if mode is not None:
            its[of.MODE] = mode
            self.shared[of.DOMAINS_UP] = max(len(self.scheduler.domains_up), 1)
        rows = domain.running.rows
        self.fleet.members[number, : len(rows)] = rows
        if self._keeps_order and isinstance(self._policy, BudgetPolicy):
            policy = self._policy
            rows = domain.running.in_order(lambda sequence: policy.rank(sequence, 0.0))
        self.fleet.ordered[number, : len(rows)] = rows
        its[of.RUNS], its[of.HAS_ROTATED] = len(rows), bool(domain.rotated)
        its[of.SPEED_ROW] = self.scheduler.speeds.row(domain.domain_id)
        its[of.AIR] = domain.device_blocks.total // 10
        self.show_ends(number)

    def show_ends(self, number: int) -> None:
        """Sequences of a domain have ended, and given their blocks back."""
        domain, its = self._domain(number), self.fleet.domains[number]
        its[of.FREE], its[of.HAS_FINISHED] = domain.device_blocks.free, bool(domain.finished)
        self.shared[of.IS_WATCHED] = self.scheduler.has_suspects

    def show_step(self, number: int, step: InFlightStep) -> None:
        """A domain's next step is this one, which the scheduler has planned and counted."""
        its, shape, fleet = self.fleet.domains[number], step.shape, self.fleet
        its[of.TOKENS], its[of.DECODES], its[of.CONTEXT] = shape.tokens, shape.decodes, shape.decode_context
        its[of.ROWS], its[of.CHUNKS] = shape.rows, shape.chunks
        fleet.flights[number, of.PAIRS] = shape.prefill_pairs
        fleet.chosen[number, : shape.decodes] = step.batch.rows
        parts = zip(step.prefills, step.starts, step.ends, strict=True)
        for i, (sequence, start, end) in enumerate(parts):
            fleet.chunks[number, i] = sequence.row, start, end - start, end >= sequence.prefill_target
        its[of.IS_ASKED] = 1

    def show_waiting(self, now: float) -> None:
        """Who waits, and in which order a plan looks at them: as SlackStep.look_again."""
        scheduler, shared, policy = self.scheduler, self.shared, self._policy
        queues = scheduler.queues
        shared[of.WAITING], shared[of.IS_STALE] = queues.count, 0
        shared[of.SHOWN], self.clock[of.LAPSES_S] = 0, math.inf
        if not queues.count:
            return
        if not isinstance(policy, SlackPolicy):
            size = scheduler.config.block_size
            shared[of.LEAST_BLOCKS] = min(-(-(head.prefill_target + 1) // size) for head in queues.heads())
            return
        parts: list[IntArray] = []
        for contract_id in policy.classes.levels:
            queues.lapse(contract_id, now)
            parts.append(queues.first_rows(contract_id, 4 * self._most))
            parts.append(queues.first_lapsed_rows(contract_id, self._most))
            self.clock[of.LAPSES_S] = min(self.clock[of.LAPSES_S], queues.lapses_s(contract_id))
        shown = sum(map(len, parts))
        self.have_shown(shown)
        self.fleet.waiting[:shown] = np.concatenate(parts)
        shared[of.SHOWN] = shown

    def have_shown(self, shown: int) -> None:
        """Have room to show so many that wait."""
        if shown > len(self.fleet.waiting):
            self._make_room(2 * shown)
            self.step = self._step()

    def replace_light(self, **arrays: IntArray | FloatArray) -> None:
        """Other arrays for the requests that are the loop's alone."""
        self.fleet = self.fleet._replace(light=self.fleet.light._replace(**arrays))  # type: ignore[arg-type]

    def show_arrival(self, contract_id: str, now: float) -> None:
        """A request of this contract has come: what it has been asking for is another now."""
        policy, fleet = self._policy, self.fleet
        if not isinstance(policy, SlackPolicy):
            return
        classes = policy.classes
        row = self.rows.get(contract_id, -1)
        if self.step.level_column is not classes.level_column or row < 0:
            self.show_classes(policy, now)
            return
        load, end = classes.loads[contract_id], int(fleet.spans[row, 1])
        fleet.loads[row, of.DEVICE_S], fleet.loads[row, of.INITIAL_SLACK_S] = load.device_s, load.initial_slack_s
        if end == fleet.arrivals.shape[1]:
            self.show_classes(policy, now)
            return
        fleet.arrivals[row, end] = now
        fleet.spans[row, 1] = end + 1

    def show_classes(self, policy: SlackPolicy, now: float) -> None:
        """All classes, and what each contract has been asking for, with room for as many arrivals again."""
        classes = policy.classes
        recent = [load.rate.recent(now) for load in classes.loads.values()]
        arrivals = np.zeros((len(recent), 64 + 2 * max(map(len, recent))), np.float64)
        spans, loads = np.zeros((len(recent), 2), np.int64), np.zeros((len(recent), of.LOADS), np.float64)
        for row, (contract_id, load) in enumerate(classes.loads.items()):
            self.rows[contract_id] = row
            rate, spans[row, 1] = load.rate, len(recent[row])
            arrivals[row, : len(recent[row])] = recent[row]
            level = classes.levels[contract_id]
            loads[row] = level, rate.first_s, rate.window_s, rate.warm_s, load.device_s, load.initial_slack_s
        self.fleet = self.fleet._replace(loads=loads, spans=spans, arrivals=arrivals)
        self.clock[of.MARGIN_S] = policy.planner.margin_share * classes.least_allowed_s
        self._levels = np.zeros((classes.count, at.LEVEL_FIGURES), np.float64)
        for level in range(classes.count):
            self._levels[level, at.IS_BEST_EFFORT] = classes.is_best_effort(level)
        self.step = self._step()

    def _domain(self, number: int) -> DomainState:
        return self.scheduler.domains[self._ids[number]]

    def _make_room(self, waiting: int) -> None:
        """For so many to be shown waiting, beside those that run."""
        self.fleet = self.fleet._replace(waiting=np.zeros(waiting, np.int64))
        room = waiting + self.scheduler.config.max_running
        self._candidates = np.zeros(room, np.int64)
        self._members, self._slacks = np.zeros(2 * room, np.int64), np.zeros(2 * room, np.float64)

    def _step(self) -> Step:
        scheduler, policy = self.scheduler, self._policy
        table, ground = scheduler.table, scheduler.ground_of(self._ids[0])
        return Step(
            table.counts,
            table.times,
            self._candidates,
            policy.classes.level_column if isinstance(policy, SlackPolicy) else self._nobody,
            ground.constants,
            ground.points,
            self._decay,
            self._levels,
            self._figures,
            self._state,
            self._members,
            self._slacks,
            self._nobody,
            self._nobody,
        )
