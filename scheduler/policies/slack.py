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

from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.ageing import Ageing
from superinfer.scheduler.columns import CONTRACT, DEADLINE_S, NOBODY, SEQUENCE_ID
from superinfer.scheduler.decay import DecayProfile
from superinfer.scheduler.policies.best_effort import BestEffortTurns
from superinfer.scheduler.policies.planner_config import PlannerConfig
from superinfer.scheduler.policies.slack_step import SlackStep
from superinfer.scheduler.policies.step_state import DONE, MAY_PREFILL, MAY_RETURN, NEEDS_ROOM
from superinfer.scheduler.policies.urgency import UrgencyClasses
from superinfer.scheduler.sequence import SequenceState, Status
from superinfer.scheduler.slack import slack_s
from superinfer.scheduler.step_builder import StepBuilder

BEST_EFFORT_DEADLINE_S = 1e9


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
        self._arrived = NOBODY, 0.0
        self._step = SlackStep(self.decay, self.planner, self._classes)

    def waiting_key(self, sequence: SequenceState) -> float:
        """Critical time: when effective slack reaches zero if the sequence goes on waiting."""
        now = sequence.stage_since_s
        arrived, initial_slack_s = self._arrived
        is_new = arrived == sequence.sequence_id and now == sequence.arrival_s
        slack = initial_slack_s if is_new else slack_s(sequence, self.model, now)
        self._arrived = NOBODY, 0.0
        if math.isinf(slack):
            return BEST_EFFORT_DEADLINE_S + sequence.arrival_s
        return now + self.decay.time_to_zero_ms(slack * 1e3) / 1e3

    def on_arrival(self, sequence: SequenceState, now: float) -> None:
        """Learn the contract's rate, its load, and where it stands among the others."""
        self._arrived = sequence.sequence_id, self._classes.add_arrival(sequence, now)

    def on_retire(self, contract_id: str) -> None:
        """Keep nothing back for it."""
        self._classes.forget(contract_id)

    def on_finish(self, sequence: SequenceState, now: float) -> None:
        """Nothing to learn."""

    def compose(self, builder: StepBuilder) -> None:
        """Fill the step class by class: the order is the compiled loop's, what it stops at is done here."""
        step = self._step
        step.begin(builder)
        victims: list[int] | None = None
        is_starved = False
        while (stop := step.go_on()) != DONE:
            if stop == MAY_PREFILL:
                step.went_in = builder.prefill(step.stopped_at, step.chunk) > 0
            elif stop == MAY_RETURN:
                self._decode_within(builder, step.stopped_at, step.limit_s)
            elif stop == NEEDS_ROOM:
                if victims is None and step.may_ask:
                    victims = self._less_urgent(builder, step.level)
                self._serve_first(builder, step.stopped_at, victims or [])
                step.may_ask = bool(victims)
                step.look_again()
            else:
                is_starved = True
                self._take_turn(builder)
        if self._classes.has_best_effort and not is_starved:
            self._turns.served(builder.domain.domain_id)
        if not builder.steps:
            self._serve_anything(builder)

    @property
    def classes(self) -> UrgencyClasses:
        """Which contracts are more urgent than which, and what they have been asking for."""
        return self._classes

    def served(self, domain_id: str) -> None:
        """A step of this domain gave best effort its share, or had none to serve."""
        if self._classes.has_best_effort:
            self._turns.served(domain_id)

    def _take_turn(self, builder: StepBuilder) -> None:
        """Best effort that has been getting nothing for long: a token or a small chunk, within the slack there is."""
        domain_id, step = builder.domain.domain_id, self._step
        claim_s = self._turns.claim_s(domain_id, builder.now, step.spare_s, is_starved=True)
        if claim_s <= 0.0:
            return
        limit_s, tokens = builder.step_s + claim_s, builder.shape.tokens
        for sequence in step.starved():
            if sequence.prefill_left:
                if sequence.status is not Status.ROTATED:
                    count = min(builder.largest_prefill(sequence, limit_s), self._small_chunk(builder))
                    builder.prefill(sequence, count)
            else:
                self._decode_within(builder, sequence, limit_s)
            if builder.shape.tokens > tokens:
                self._turns.took(domain_id)
                return

    def _serve_anything(self, builder: StepBuilder) -> None:
        """No limit was wide enough for any work: a device that idles helps nobody, so the first that can go, goes."""
        for level in range(self._classes.count):
            for sequence in self._step.in_order(level):
                self._decode_within(builder, sequence, math.inf, needs_air=False)
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

    def _serve_first(self, builder: StepBuilder, sequence: SequenceState, victims: list[int]) -> None:
        """A decode of the most urgent class for which others give way, as many as it needs."""
        needed = builder.blocks_needed(sequence)
        while victims and not self._has_room(builder, sequence, needed):
            builder.preempt(builder.owner(victims.pop()))
        if sequence.status is not Status.ROTATED or builder.rotate_in(sequence):
            builder.decode(sequence)

    def _decode_within(
        self, builder: StepBuilder, sequence: SequenceState, limit_s: float, *, needs_air: bool = True
    ) -> None:
        """A decode, of a rotated sequence once it is back. One that was rotated out in its prefill only comes back."""
        if sequence.status is Status.ROTATED and sequence.prefill_left:
            self._come_back(builder, sequence, needs_air=needs_air)
            return
        if sequence.status is Status.WAITING or not sequence.can_decode:
            return
        if builder.step_s_with_decode(sequence) > limit_s:
            return
        if sequence.status is Status.ROTATED and not self._come_back(builder, sequence, needs_air=needs_air):
            return
        builder.decode(sequence)

    @staticmethod
    def _come_back(builder: StepBuilder, sequence: SequenceState, *, needs_air: bool) -> bool:
        """Coming back needs air: a return that fills the pool would be rotated out again at the next urgent arrival."""
        spare = builder.domain.device_blocks.free - builder.blocks_needed(sequence)
        return spare >= (builder.air_blocks if needs_air else 0) and builder.rotate_in(sequence)

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
