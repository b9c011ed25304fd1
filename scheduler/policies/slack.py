"""Slack scheduling: compose each step so that every live contract keeps its deadline, and give the rest away.

Contracts fall into urgency classes by how much time they allow. A step is filled class by class, most urgent first:

1. live requests of the most urgent class present decode, and their prefills go in whole unless that costs a more
   critical one of them its deadline;
2. they set a limit on the step: a request's slack, less a *reserve* for urgent work that has not arrived yet, is
   spent evenly over the steps it still needs. Less urgent work goes in while the predicted step time stays within
   the limit of every live request above it;
3. a request that cannot make it any more is *lost*: it rides along right after those that can, so that it completes
   soon without costing anyone a deadline;
4. among less urgent requests that cannot all make it, Moore–Hodgson's rule says which to give up;
5. where nothing urgent is alive, a step cap keeps the device free soon for what may arrive.
"""

from __future__ import annotations

import math

import numpy as np

from superinfer.profiler.latency_model import LatencyModel, StepShape
from superinfer.scheduler.ageing import Ageing
from superinfer.scheduler.columns import CONTRACT, DEADLINE_S, SEQUENCE_ID, IntArray
from superinfer.scheduler.decay import DecayProfile
from superinfer.scheduler.kernels import model_columns
from superinfer.scheduler.moore_hodgson import split_feasible
from superinfer.scheduler.policies.allowance import Allowance, Reserve
from superinfer.scheduler.policies.best_effort import BestEffortTurns
from superinfer.scheduler.policies.plan_times import PlanTimes, Ranked
from superinfer.scheduler.policies.planner_config import PlannerConfig
from superinfer.scheduler.policies.slack_kernels import (
    deadline_jobs,
    decay_columns,
    highest_level,
    needed_pace_s,
    rows_of_level,
)
from superinfer.scheduler.policies.urgency import UrgencyClasses
from superinfer.scheduler.sequence import SequenceState, Status
from superinfer.scheduler.slack import remaining_s, slack_s
from superinfer.scheduler.step_builder import StepBuilder

BEST_EFFORT_DEADLINE_S = 1e9
PATIENCE = 0.3
"""Share of its allowed time that a less urgent request's slack must exceed for its prefill to wait for a good chunk."""
LEAST_CAP_STEPS = 2.0
"""The step cap is at least as long as this many steps of one decode."""
LOOSE_SHARE = 0.75
"""Share of the sequences a domain may run beyond which less urgent ones do not enter: requests that were given up hold
their KV, and must not keep urgent ones out."""


class SlackPolicy:
    """See the module's text. One instance learns arrival rates and loads per contract for all domains."""

    name = "slack"

    def __init__(
        self,
        model: LatencyModel,
        *,
        decay: DecayProfile | None = None,
        planner: PlannerConfig | None = None,
        ageing: Ageing | None = None,
    ) -> None:
        self.model = model
        self.decay = decay or DecayProfile()
        self.planner = planner or PlannerConfig()
        self._classes = UrgencyClasses(model, self.planner.class_ratio)
        self._turns = BestEffortTurns(ageing)
        self._efficient_chunk = model.efficient_chunk
        self._costs = model_columns(model)
        self._decay_columns = decay_columns(self.decay)

    def waiting_key(self, sequence: SequenceState) -> float:
        """Critical time: when effective slack reaches zero if the sequence goes on waiting."""
        now = sequence.stage_since_s
        slack = slack_s(sequence, self.model, now)
        if math.isinf(slack):
            return BEST_EFFORT_DEADLINE_S + sequence.arrival_s
        return now + self.decay.time_to_zero_ms(slack * 1e3) / 1e3

    def on_arrival(self, sequence: SequenceState, now: float) -> None:
        """Learn the contract's rate, its load, and where it stands among the others."""
        self._classes.add_arrival(sequence, now)

    def on_retire(self, contract_id: str) -> None:
        """Keep nothing back for it."""
        self._classes.forget(contract_id)

    def on_finish(self, sequence: SequenceState, now: float) -> None:
        """Nothing to learn."""

    def compose(self, builder: StepBuilder) -> None:
        """Fill the step class by class."""
        times = PlanTimes(builder, self.model, self._costs, self._decay_columns)
        allowed, urgent = Allowance(), list[IntArray]()
        for level in range(self._classes.count):
            live, lost = self._members(builder, times, level)
            cap_s, tokens = math.inf, builder.shape.tokens
            if allowed.even_s < math.inf:
                self._serve_within(builder, live, allowed, min_chunk=self._efficient_chunk)
            elif level > 0:
                cap_s = self._idle_cap_s(builder.now, level)
                self._serve_within(builder, live, Allowance(cap_s, cap_s), min_chunk=1)
            else:
                self._serve_first(builder, times, live, level)
            reserve = Reserve(
                self.planner.reserve_alpha * self._load_share(builder, level),
                self.planner.margin_share * self._classes.least_allowed_s,
            )
            allowed &= times.allowance(live.rows, reserve)
            urgent.append(live.rows)
            self._ride_along(builder, lost, min(allowed.even_s, cap_s))
            if self._classes.is_best_effort(level):
                is_starved = bool(len(live)) and builder.shape.tokens == tokens
                self._take_turn(builder, times, live, urgent, is_starved=is_starved)
        if not builder.steps:
            self._serve_anything(builder, times)

    def decodes_all_s(self, sequences: list[SequenceState], last: StepShape, now: float) -> float:
        """For how long plans would decode all of these and nothing else, if they were alone and nobody came or ended;
        0 where that has to be planned. `last` is the widest step until then.

        Requests of one class hold each other up by no limit while all of them can make it or all are lost. Slack falls
        no faster than time passes, and a request stays lost if even steps a quarter shorter than predicted would not
        bring it home. A less urgent class has a step cap.
        """
        level = self._classes.level(sequences[0])
        if any(self._classes.level(sequence) != level for sequence in sequences):
            return 0.0
        if level > 0 and self.model.step_s(last) > self._idle_cap_s(now, level):
            return 0.0
        if sequences[0].domain is not None:
            self._turns.served(sequences[0].domain.domain_id)
        least = min(slack_s(sequence, self.model, now) for sequence in sequences)
        if least > 0.0:
            return least
        hopeless = (s.deadline_s - now <= 0.75 * remaining_s(s, self.model) for s in sequences)
        return math.inf if all(hopeless) else 0.0

    def _take_turn(
        self, builder: StepBuilder, times: PlanTimes, live: Ranked, urgent: list[IntArray], *, is_starved: bool
    ) -> None:
        """Best effort that has been getting nothing for long: a token or a small chunk, within the slack there is."""
        domain_id = builder.domain.domain_id

        def spare_s() -> float:
            return times.allowance(np.concatenate(urgent), Reserve()).whole_s - builder.step_s

        claim_s = self._turns.claim_s(domain_id, builder.now, spare_s, is_starved=is_starved)
        if claim_s <= 0.0:
            return
        limit_s, tokens = builder.step_s + claim_s, builder.shape.tokens
        for row in live.rows:
            sequence = builder.owner(row)
            if sequence.prefill_left:
                if sequence.status is not Status.ROTATED:
                    count = min(builder.largest_prefill(sequence, limit_s), self._small_chunk(builder))
                    builder.prefill(sequence, count)
            else:
                self._decode_within(builder, sequence, limit_s)
            if builder.shape.tokens > tokens:
                self._turns.took(domain_id)
                return

    def _serve_anything(self, builder: StepBuilder, times: PlanTimes) -> None:
        """No limit was wide enough for any work: a device that idles helps nobody, so the first that can go, goes."""
        for level in range(self._classes.count):
            live, lost = self._members(builder, times, level)
            for row in (*live.rows, *lost.rows):
                sequence = builder.owner(row)
                self._decode_within(builder, sequence, math.inf)
                if not builder.steps and sequence.status is not Status.ROTATED:
                    builder.prefill(sequence, self._small_chunk(builder))
                if builder.steps:
                    return
        if not builder.domain.in_flight:
            self._break_deadlock(builder)

    def _break_deadlock(self, builder: StepBuilder) -> None:
        """Equals hold all memory, each lacks a block, and no result is due that could free one: the last give way until
        the first can go on. Their order is a fixed one, lest they give way to each other in turns.
        """
        stuck = sorted(
            (s for s in builder.domain.running.values() if not s.is_done_planning),
            key=lambda s: (self._classes.level(s), s.is_lost, s.deadline_s, s.sequence_id),
        )
        while len(stuck) > 1 and builder.preempt(stuck.pop()):
            if builder.decode(stuck[0]) or builder.prefill(stuck[0], self._small_chunk(builder)):
                return

    @staticmethod
    def _small_chunk(builder: StepBuilder) -> int:
        """A chunk small enough to end soon: a quarter of the token budget."""
        return max(builder.config.max_step_tokens // 4, 1)

    def _members(self, builder: StepBuilder, times: PlanTimes, level: int) -> tuple[Ranked, Ranked]:
        """The sequences of a class that this domain could serve, those with KV and the first that wait: those that can
        make it, by urgency, and the lost ones.
        """
        domain = builder.domain
        holders = domain.running.rows
        if domain.rotated:
            holders = np.concatenate((holders, domain.rotated.rows))
        found = np.empty(len(holders), np.int64)
        number = rows_of_level(builder.table.counts, holders, self._classes.level_column, level, found)
        waiting = []
        most = self.planner.loose_limit(builder.config.max_running)
        for contract_id in self._classes.contracts(level):
            builder.queues.lapse(contract_id, builder.now)
            waiting.append(builder.queues.first_rows(contract_id, 4 * most))
            waiting.append(builder.queues.first_lapsed_rows(contract_id, most))
        return times.ranked(np.concatenate((found[:number], *waiting)))

    def _serve_first(self, builder: StepBuilder, times: PlanTimes, live: Ranked, level: int) -> None:
        """The most urgent class present: every decode, then prefills, looser work giving way where memory is short.

        A prefill goes in whole unless it would cost a more critical request of the class its deadline.
        """
        victims: list[int] | None = None
        may_ask = self._has_less_urgent(builder, level)
        position = builder.decode_all(live.rows, ask_for_room=may_ask)
        while position < len(live):
            sequence = builder.owner(live.rows[position])
            needed = builder.blocks_needed(sequence)
            if may_ask and not self._has_room(builder, sequence, needed):
                if victims is None:
                    victims = self._less_urgent(builder, level)
                while victims and not self._has_room(builder, sequence, needed):
                    builder.preempt(builder.owner(victims.pop()))
                may_ask = bool(victims)
            if sequence.status is not Status.ROTATED or builder.rotate_in(sequence):
                builder.decode(sequence)
            position = builder.decode_all(live.rows, position + 1, ask_for_room=may_ask)
        # Until the last prefill that can go in, each request limits those after it.
        limit_s, begin = math.inf, 0
        position = builder.next_prefill(live.rows, entering=builder.has_room)
        while position < len(live):
            limit_s = min(limit_s, times.allowance(live.rows[begin:position], Reserve()).even_s)
            sequence = builder.owner(live.rows[position])
            builder.prefill(sequence, builder.largest_prefill(sequence, limit_s))
            begin, position = position, builder.next_prefill(live.rows, position + 1, entering=builder.has_room)

    def _serve_within(self, builder: StepBuilder, live: Ranked, allowed: Allowance, *, min_chunk: int) -> None:
        """Less urgent requests within what the urgent ones bear, least work left first: decodes, then a prefill chunk.

        Both may spend a share of the slack at once: a decode brings a request that has already cost its prefill nearer
        to its end, and large chunks use the device better than small ones. A chunk below `min_chunk` goes in only for
        a request that cannot wait for a better moment, and none holds up the decodes of its peers for too long.
        """
        if not len(live):
            return
        ordered, kept = self._split(builder, live)
        rows, slacks = ordered.rows, ordered.slacks_s
        in_flight = builder.count_running(rows[:kept])
        may_enter = (
            in_flight < self.planner.loose_limit(builder.config.max_running)
            and len(builder.domain.running) < LOOSE_SHARE * builder.config.max_running
        )
        self._decode_all_within(builder, rows, allowed.burst_s(builder.step_s, self.planner.burst_share))
        limit_s = min(
            allowed.burst_s(builder.step_s, self.planner.burst_share), self._peers_limit_s(builder, rows[:kept])
        )
        if builder.tokens_left < 1 or builder.least_step_s_with_prefill > limit_s:
            return
        position = builder.next_prefill(rows, entering=may_enter)
        while position < len(rows):
            sequence = builder.owner(rows[position])
            count = builder.largest_prefill(sequence, limit_s)
            can_wait = slacks[position] > PATIENCE * (sequence.deadline_s - sequence.arrival_s)
            if count < min(min_chunk, sequence.prefill_left) and can_wait:
                return
            if builder.prefill(sequence, count):
                return
            position = builder.next_prefill(rows, position + 1, entering=may_enter)

    def _ride_along(self, builder: StepBuilder, lost: Ranked, limit_s: float) -> None:
        """Lost requests after the live ones of their class, within what those allow."""
        position = 0
        while position < len(lost):
            may_prefill = builder.least_step_s_with_prefill <= limit_s
            if not may_prefill and builder.least_step_s_with_decode > limit_s:
                return
            position = builder.decode_within(lost.rows, limit_s, position, prefills=may_prefill)
            if position < len(lost):
                sequence = builder.owner(lost.rows[position])
                if sequence.status is Status.ROTATED:
                    self._decode_within(builder, sequence, limit_s)
                else:
                    builder.prefill(sequence, builder.largest_prefill(sequence, limit_s))
            position += 1

    def _decode_all_within(self, builder: StepBuilder, rows: IntArray, limit_s: float) -> None:
        """Decodes in the order given, as many as the limit allows."""
        position = builder.decode_within(rows, limit_s)
        while position < len(rows):
            self._decode_within(builder, builder.owner(rows[position]), limit_s)
            position = builder.decode_within(rows, limit_s, position + 1)

    def _decode_within(self, builder: StepBuilder, sequence: SequenceState, limit_s: float) -> None:
        if sequence.status is Status.WAITING or not sequence.can_decode:
            return
        if builder.step_s_with_decode(sequence) > limit_s:
            return
        if sequence.status is Status.ROTATED:
            # Coming back needs air: a return that fills the pool would be rotated out again at the next urgent arrival.
            spare = builder.domain.device_blocks.free - builder.blocks_needed(sequence)
            if spare < builder.air_blocks or not builder.rotate_in(sequence):
                return
        builder.decode(sequence)

    def _load_share(self, builder: StepBuilder, level: int) -> float:
        """Share of this domain's time that arrivals at least as urgent as this class will take."""
        return self._classes.load_share(builder.now, level) / builder.domains_up

    def _idle_cap_s(self, now: float, level: int) -> float:
        """Step cap while nothing more urgent is alive: what the tightest contract above can bear to wait, and never
        less than it takes to share a step.
        """
        cap_s = self.planner.idle_step_share * self._classes.initial_slack_s(now, level)
        return max(cap_s, LEAST_CAP_STEPS * self.model.decode_step_s(0))

    def _split(self, builder: StepBuilder, live: Ranked) -> tuple[Ranked, int]:
        """Those that can all make it together, then those to give up, each with the least work left first; and how many
        are kept.

        In overload, requests in deadline order would all be brought near to their ends and all be late.
        """
        table, share = builder.table, self._share_left(builder, live.rows)
        batch = max(min(len(live), self.planner.loose_limit(builder.config.max_running)), 1)
        token_s = self.model.shared_decode_s(batch, builder.owner(live.rows[0]).computed)
        time_left_s, works_s = deadline_jobs(
            table.counts, table.times, live.rows, builder.now, token_s, self.model.prefill_token_s
        )
        order, kept = split_feasible(time_left_s, works_s / share, table.counts[live.rows, SEQUENCE_ID])
        return live.take(order), kept

    def _peers_limit_s(self, builder: StepBuilder, kept: IntArray) -> float:
        """The longest step at which those of the class that decode still make it, in the time that more urgent work
        leaves them.
        """
        table = builder.table
        pace_s = needed_pace_s(table.counts, table.times, kept, builder.now)
        return math.inf if pace_s == math.inf else self._share_left(builder, kept) * pace_s

    def _share_left(self, builder: StepBuilder, rows: IntArray) -> float:
        """Share of this domain's time that classes more urgent than that of these requests will leave."""
        level = self._classes.level(builder.owner(rows[0]))
        return 1.0 - (min(self._load_share(builder, level - 1), 0.95) if level else 0.0)

    def _has_less_urgent(self, builder: StepBuilder, level: int) -> bool:
        """Whether sequences of strictly less urgent classes run."""
        return highest_level(builder.table.counts, builder.domain.running.rows, self._classes.level_column) > level

    def _less_urgent(self, builder: StepBuilder, level: int) -> list[int]:
        """Rows of running sequences of strictly less urgent classes, the least urgent last: the first to give way, and
        just as many of them as a more urgent one needs.
        """
        table, rows = builder.table, builder.domain.running.rows
        levels = self._classes.level_column[table.counts[rows, CONTRACT]]
        rows, levels = rows[levels > level], levels[levels > level]
        order = np.lexsort((table.counts[rows, SEQUENCE_ID], table.times[rows, DEADLINE_S], levels))
        victims: list[int] = rows[order].tolist()
        return victims

    @staticmethod
    def _has_room(builder: StepBuilder, sequence: SequenceState, blocks: int) -> bool:
        enters = sequence.status is not Status.RUNNING
        return builder.domain.device_blocks.free >= blocks and (builder.has_room or not enters)
