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
from dataclasses import dataclass

from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.decay import DecayProfile
from superinfer.scheduler.moore_hodgson import split_feasible
from superinfer.scheduler.policies.allowance import Allowance, Reserve
from superinfer.scheduler.policies.plan_times import PlanTimes, PrefillTimes
from superinfer.scheduler.policies.planner_config import PlannerConfig
from superinfer.scheduler.policies.urgency import UrgencyClasses
from superinfer.scheduler.sequence import SequenceState, Status
from superinfer.scheduler.slack import slack_s
from superinfer.scheduler.step_builder import StepBuilder

BEST_EFFORT_DEADLINE_S = 1e9
PATIENCE = 0.3
"""Share of its allowed time that a less urgent request's slack must exceed for its prefill to wait for a good chunk."""
LOOSE_SHARE = 0.75
"""Share of the sequences a domain may run beyond which less urgent ones do not enter: requests that were given up hold
their KV, and must not keep urgent ones out."""


@dataclass(slots=True)
class _Live:
    """A sequence with its slack at the time of planning."""

    sequence: SequenceState
    slack_s: float


class SlackPolicy:
    """See the module's text. One instance learns arrival rates and loads per contract for all domains."""

    name = "slack"

    def __init__(
        self,
        model: LatencyModel,
        *,
        decay: DecayProfile | None = None,
        planner: PlannerConfig | None = None,
    ) -> None:
        self.model = model
        self.decay = decay or DecayProfile()
        self.planner = planner or PlannerConfig()
        self._classes = UrgencyClasses(model, self.planner.class_ratio)
        self._prefills = PrefillTimes(model)

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
        times = PlanTimes(self.model, self.decay, self._prefills, builder.now)
        by_level = self._by_level(builder)
        allowed = Allowance()
        for level in range(self._classes.count):
            live, lost = self._members(builder, times, by_level[level], level)
            cap_s = math.inf
            if allowed.even_s < math.inf:
                self._serve_within(builder, live, allowed, min_chunk=self.model.efficient_chunk)
            elif level > 0:
                cap_s = self._idle_cap_s(level)
                self._serve_within(builder, live, Allowance(cap_s, cap_s), min_chunk=1)
            else:
                self._serve_first(builder, times, live, level)
                if builder.has_preempted:
                    by_level = self._by_level(builder)
            reserve = Reserve(
                self.planner.reserve_alpha * self._load_share(builder, level), self.planner.margin_ms / 1e3
            )
            allowed &= times.common_allowance([item.sequence for item in live], reserve)
            self._ride_along(builder, lost, min(allowed.even_s, cap_s))
        if not builder.steps:
            self._serve_anything(builder, times)

    def _serve_anything(self, builder: StepBuilder, times: PlanTimes) -> None:
        """No limit was wide enough for any work: a device that idles helps nobody, so the first that can go, goes."""
        by_level = self._by_level(builder)
        for level in range(self._classes.count):
            live, lost = self._members(builder, times, by_level[level], level)
            for item in (*live, *lost):
                self._decode_within(builder, item.sequence, math.inf)
                if not builder.steps and item.sequence.status is not Status.ROTATED:
                    builder.prefill(item.sequence, self._small_chunk(builder))
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

    def _by_level(self, builder: StepBuilder) -> list[list[SequenceState]]:
        """The sequences with KV that have anything left to plan, class by class."""
        levels = self._classes.levels
        found: list[list[SequenceState]] = [[] for _ in range(self._classes.count)]
        for pool in (builder.domain.running, builder.domain.rotated):
            for sequence in pool.values():
                if sequence.planned_outputs < sequence.request.sampling.max_tokens:
                    found[levels[sequence.request.contract_id]].append(sequence)
        return found

    def _members(
        self, builder: StepBuilder, times: PlanTimes, holders: list[SequenceState], level: int
    ) -> tuple[list[_Live], list[_Live]]:
        """The sequences of a class that this domain could serve, those with KV and the first that wait: those that can
        make it, by urgency, and the lost ones.
        """
        candidates = list(holders)
        for contract_id in self._classes.contracts(level):
            candidates.extend(builder.queues.first(contract_id, self.planner.loose_in_flight * 4))
        live: list[_Live] = []
        lost: list[_Live] = []
        for sequence, slack in zip(candidates, times.slacks_s(candidates), strict=True):
            sequence.is_lost = slack <= 0.0
            (lost if sequence.is_lost else live).append(_Live(sequence, slack))
        live.sort(key=self._rank)
        lost.sort(key=lambda item: (item.sequence.arrival_s, item.sequence.sequence_id))
        return live, lost

    def _rank(self, item: _Live) -> tuple[float, float, int]:
        """Highest risk first; at equal risk the earlier critical time."""
        sequence, slack_ms = item.sequence, item.slack_s * 1e3
        if math.isinf(slack_ms):
            return (0.0, sequence.arrival_s, sequence.sequence_id)
        return (
            -self.decay.log_risk(sequence.contract.priority, slack_ms),
            self.decay.time_to_zero_ms(slack_ms),
            sequence.sequence_id,
        )

    def _serve_first(self, builder: StepBuilder, times: PlanTimes, live: list[_Live], level: int) -> None:
        """The most urgent class present: every decode, then prefills, looser work giving way where memory is short.

        A prefill goes in whole unless it would cost a more critical request of the class its deadline.
        """
        victims: list[SequenceState] | None = None
        for item in live:
            sequence = item.sequence
            if sequence.status is Status.RUNNING and builder.decode(sequence):
                continue
            needed = builder.blocks_needed(sequence)
            if not self._has_room(builder, sequence, needed):
                if victims is None:
                    victims = self._less_urgent(builder, level)
                while victims and not self._has_room(builder, sequence, needed):
                    builder.preempt(victims.pop())
            if sequence.status is Status.ROTATED and not builder.rotate_in(sequence):
                continue
            builder.decode(sequence)
        # Until the last prefill that can go in, each request limits those after it.
        end = len(live)
        while end and not self._may_prefill(builder, live[end - 1].sequence):
            end -= 1
        limit_s = math.inf
        for item in live[:end]:
            sequence = item.sequence
            if self._may_prefill(builder, sequence):
                builder.prefill(sequence, builder.largest_prefill(sequence, limit_s))
            limit_s = min(limit_s, times.allowance(sequence, Reserve())[0])

    def _serve_within(self, builder: StepBuilder, live: list[_Live], allowed: Allowance, *, min_chunk: int) -> None:
        """Less urgent requests within what the urgent ones bear, least work left first: decodes, then a prefill chunk.

        Both may spend a share of the slack at once: a decode brings a request that has already cost its prefill nearer
        to its end, and large chunks use the device better than small ones. A chunk below `min_chunk` goes in only for
        a request that cannot wait for a better moment, and none holds up the decodes of its peers for too long.
        """
        kept, given_up = self._split(builder, live)
        in_flight = sum(item.sequence.status is Status.RUNNING for item in kept)
        running = len(builder.domain.running)
        decode_limit_s = allowed.burst_s(builder.step_s, self.planner.burst_share)
        self._decode_all_within(builder, [item.sequence for item in (*kept, *given_up)], decode_limit_s)
        limit_s = min(allowed.burst_s(builder.step_s, self.planner.burst_share), self._peers_limit_s(builder, kept))
        if builder.tokens_left < 1 or builder.least_step_s_with_prefill > limit_s:
            return
        for item in (*kept, *given_up):
            sequence = item.sequence
            if not sequence.prefill_left or sequence.status is Status.ROTATED:
                continue
            if sequence.status is Status.WAITING and (
                in_flight >= self.planner.loose_in_flight or running >= LOOSE_SHARE * builder.config.max_running
            ):
                continue
            count = builder.largest_prefill(sequence, limit_s)
            can_wait = item.slack_s > PATIENCE * (sequence.deadline_s - sequence.arrival_s)
            if count < min(min_chunk, sequence.prefill_left) and can_wait:
                return
            if builder.prefill(sequence, count):
                return

    def _ride_along(self, builder: StepBuilder, lost: list[_Live], limit_s: float) -> None:
        """Lost requests after the live ones of their class, within what those allow."""
        for item in lost:
            if builder.least_step_s_with_prefill > limit_s and builder.least_step_s_with_decode > limit_s:
                return
            sequence = item.sequence
            if sequence.prefill_left and sequence.status is not Status.ROTATED:
                if self._may_prefill(builder, sequence):
                    builder.prefill(sequence, builder.largest_prefill(sequence, limit_s))
            else:
                self._decode_within(builder, sequence, limit_s)

    @staticmethod
    def _may_prefill(builder: StepBuilder, sequence: SequenceState) -> bool:
        """False where a prefill cannot go in, whatever the limit."""
        if sequence.computed >= sequence.prefill_target or sequence.status is Status.ROTATED:
            return False
        return builder.tokens_left > 0 and (sequence.status is Status.RUNNING or builder.has_room)

    def _decode_all_within(self, builder: StepBuilder, sequences: list[SequenceState], limit_s: float) -> None:
        """Decodes in the order given, as many as the limit allows."""
        for sequence in sequences:
            if builder.least_step_s_with_decode > limit_s:
                return
            self._decode_within(builder, sequence, limit_s)

    def _decode_within(self, builder: StepBuilder, sequence: SequenceState, limit_s: float) -> None:
        if sequence.status is Status.WAITING or not sequence.can_decode:
            return
        if builder.step_s_with_decode(sequence) > limit_s:
            return
        if sequence.status is Status.ROTATED:
            # Coming back needs air: a return that fills the pool would be rotated out again at the next urgent arrival.
            spare = builder.domain.device_blocks.free - builder.blocks_needed(sequence)
            if spare < builder.domain.device_blocks.total // 10 or not builder.rotate_in(sequence):
                return
        builder.decode(sequence)

    def _load_share(self, builder: StepBuilder, level: int) -> float:
        """Share of this domain's time that arrivals at least as urgent as this class will take."""
        return self._classes.load_share(builder.now, level) / builder.domains_up

    def _idle_cap_s(self, level: int) -> float:
        """Step cap while nothing more urgent is alive: what the tightest contract above can bear to wait."""
        return max(self.planner.idle_step_share * self._classes.initial_slack_s(level), 1e-3)

    def _split(self, builder: StepBuilder, live: list[_Live]) -> tuple[list[_Live], list[_Live]]:
        """Those that can all make it together, and those to give up; each with the least work left first.

        In overload, requests in deadline order would all be brought near to their ends and all be late.
        """
        if not live:
            return [], []
        share = self._share_left(builder, live)
        batch = max(min(len(live), self.planner.loose_in_flight), 1)
        token_s = self.model.shared_decode_s(batch, live[0].sequence.computed)
        prompt_token_s = self.model.prefill_token_s
        works_s = [item.sequence.outputs_left * token_s + item.sequence.prefill_left * prompt_token_s for item in live]
        jobs = [
            (item.sequence.deadline_s - builder.now, work_s / share) for item, work_s in zip(live, works_s, strict=True)
        ]
        kept, dropped = split_feasible(jobs)

        def order(i: int) -> tuple[float, int]:
            return works_s[i], live[i].sequence.sequence_id

        return [live[i] for i in sorted(kept, key=order)], [live[i] for i in sorted(dropped, key=order)]

    def _peers_limit_s(self, builder: StepBuilder, kept: list[_Live]) -> float:
        """The longest step at which those of the class that decode still make it, in the time that more urgent work
        leaves them.
        """
        decoding = [item.sequence for item in kept if item.sequence.can_decode]
        if not decoding:
            return math.inf
        share = self._share_left(builder, kept)
        return share * min((s.deadline_s - builder.now) / s.outputs_left for s in decoding)

    def _share_left(self, builder: StepBuilder, live: list[_Live]) -> float:
        """Share of this domain's time that classes more urgent than that of these requests will leave."""
        level = self._classes.level(live[0].sequence)
        return 1.0 - (min(self._load_share(builder, level - 1), 0.95) if level else 0.0)

    def _less_urgent(self, builder: StepBuilder, level: int) -> list[SequenceState]:
        """Running sequences of strictly less urgent classes, the least urgent last: the first to give way, and just as
        many of them as a more urgent one needs.
        """
        return sorted(
            (s for s in builder.domain.running.values() if self._classes.level(s) > level),
            key=lambda s: (self._classes.level(s), s.deadline_s, s.sequence_id),
        )

    @staticmethod
    def _has_room(builder: StepBuilder, sequence: SequenceState, blocks: int) -> bool:
        enters = sequence.status is not Status.RUNNING
        return builder.domain.device_blocks.free >= blocks and (builder.has_room or not enters)
