"""The slack policy written plainly: every figure computed anew wherever it is asked for. What the policy that serves
decides has to equal what this one decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.decay import DecayProfile
from superinfer.scheduler.policies.best_effort import BestEffortTurns
from superinfer.scheduler.policies.planner_config import PlannerConfig
from superinfer.scheduler.policies.urgency import UrgencyClasses
from superinfer.scheduler.sequence import SequenceState, Status
from superinfer.scheduler.slack import milestones, slack_s
from superinfer.scheduler.step_builder import StepBuilder

BEST_EFFORT_DEADLINE_S = 1e9
PATIENCE = 0.3
"""Share of its allowed time that a less urgent request's slack must exceed for its prefill to wait for a good chunk."""
LEAST_CAP_STEPS = 2.0
"""The step cap is at least as long as this many steps of one decode."""
LOOSE_SHARE = 0.75
"""Share of the sequences a domain may run beyond which less urgent ones do not enter: requests that were given up hold
their KV, and must not keep urgent ones out."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """How long a step urgent requests can bear: their own step, and what of their slack may be spent on others.
    `even_s`: the step time at which slack lasts for all steps left; `whole_s`: if it were all spent at once.
    """

    even_s: float = math.inf
    whole_s: float = math.inf

    def burst_s(self, base_s: float, share: float) -> float:
        """The step time at which this share of all the slack is spent at once, on top of a step of `base_s`."""
        return max(self.even_s, base_s + share * max(self.whole_s - base_s, 0.0))

    def __and__(self, other: Allowance) -> Allowance:
        """What both can bear."""
        return Allowance(min(self.even_s, other.even_s), min(self.whole_s, other.whole_s))


@dataclass(frozen=True, slots=True)
class Reserve:
    """Slack that is not spent: `share` of the time left, for urgent requests that have not arrived yet, and a
    margin.
    """

    share: float = 0.0
    margin_s: float = 0.0


def allowance(
    sequence: SequenceState, model: LatencyModel, decay: DecayProfile, now: float, reserve: Reserve
) -> Allowance:
    """What one request can bear, over all its milestones; unlimited for best effort.

    A step may take longer than predicted: what is allowed is what fits even at the model's upper quantile.
    """
    own_s = model.decode_step_s(sequence.computed)
    upper = model.upper_ratio
    even = whole = math.inf
    for milestone in milestones(sequence, model, now):
        usable_s = decay.time_to_zero_ms(milestone.slack_s * 1e3) / 1e3
        spare_s = usable_s - reserve.share * max(milestone.time_left_s, 0.0) - reserve.margin_s
        even = min(even, (own_s + spare_s / milestone.steps_left) / upper)
        whole = min(whole, (own_s + spare_s) / upper)
    return Allowance(even, whole)


def split_feasible(jobs: list[tuple[float, float]]) -> tuple[list[int], list[int]]:
    """Moore–Hodgson: indices of jobs (time to deadline, work) to keep and to give up, each in deadline order."""
    order = sorted(range(len(jobs)), key=lambda i: (jobs[i][0], i))
    kept: list[int] = []
    total = 0.0
    for i in order:
        kept.append(i)
        total += jobs[i][1]
        while kept and total > jobs[i][0]:
            worst = min(kept, key=lambda k: (-jobs[k][1], k))
            kept.remove(worst)
            total -= jobs[worst][1]
            if worst == i:
                break
    return kept, [i for i in order if i not in kept]


@dataclass(slots=True)
class _Live:
    """A sequence with its slack at the time of planning."""

    sequence: SequenceState
    slack_s: float


class PlainSlackPolicy:
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
        self._turns = BestEffortTurns()

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

    def on_finish(self, sequence: SequenceState, now: float) -> None:
        """Nothing to learn."""

    def compose(self, builder: StepBuilder) -> None:
        """Fill the step class by class."""
        allowed, urgent = Allowance(), list[_Live]()
        for level in range(self._classes.count):
            live, lost = self._members(builder, level)
            cap_s, tokens = math.inf, builder.shape.tokens
            if allowed.even_s < math.inf:
                self._serve_within(builder, live, allowed, min_chunk=self.model.efficient_chunk)
            elif level > 0:
                cap_s = self._idle_cap_s(builder.now, level)
                self._serve_within(builder, live, Allowance(cap_s, cap_s), min_chunk=1)
            else:
                self._serve_first(builder, live)
            reserve = Reserve(
                self.planner.reserve_alpha * self._load_share(builder, level),
                self.planner.margin_share * self._classes.least_allowed_s,
            )
            for item in live:
                allowed &= allowance(item.sequence, self.model, self.decay, builder.now, reserve)
            urgent.extend(live)
            self._ride_along(builder, lost, min(allowed.even_s, cap_s))
            if self._classes.is_best_effort(level):
                is_starved = bool(len(live)) and builder.shape.tokens == tokens
                self._take_turn(builder, live, urgent, is_starved=is_starved)
        if not builder.steps:
            self._serve_anything(builder)

    def _take_turn(self, builder: StepBuilder, live: list[_Live], urgent: list[_Live], *, is_starved: bool) -> None:
        """Best effort that has been getting nothing for long: a token or a small chunk, within the slack there is."""
        domain_id = builder.domain.domain_id

        def spare_s() -> float:
            bearable_s = (
                allowance(item.sequence, self.model, self.decay, builder.now, Reserve()).whole_s for item in urgent
            )
            return min(bearable_s, default=math.inf) - builder.step_s

        claim_s = self._turns.claim_s(domain_id, builder.now, spare_s, is_starved=is_starved)
        if claim_s <= 0.0:
            return
        limit_s, tokens = builder.step_s + claim_s, builder.shape.tokens
        for item in live:
            sequence = item.sequence
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
            live, lost = self._members(builder, level)
            for item in (*live, *lost):
                self._decode_within(builder, item.sequence, math.inf, needs_air=False)
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

    def _members(self, builder: StepBuilder, level: int) -> tuple[list[_Live], list[_Live]]:
        """The sequences of a class that this domain could serve: those that can make it, by urgency, and the lost
        ones.
        """
        candidates = [
            s
            for pool in (builder.domain.running, builder.domain.rotated)
            for s in pool.values()
            if not s.is_done_planning and self._classes.level(s) == level
        ]
        most = self.planner.loose_limit(builder.config.max_running)
        for contract_id in self._classes.contracts(level):
            builder.queues.lapse(contract_id, builder.now)
            candidates.extend(builder.queues.first(contract_id, 4 * most))
            candidates.extend(builder.queues.first_lapsed(contract_id, most))
        live: list[_Live] = []
        lost: list[_Live] = []
        for sequence in candidates:
            item = _Live(sequence, slack_s(sequence, self.model, builder.now))
            sequence.is_lost = item.slack_s <= 0.0
            (lost if sequence.is_lost else live).append(item)
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

    def _serve_first(self, builder: StepBuilder, live: list[_Live]) -> None:
        """The most urgent class present: every decode, then prefills, looser work giving way where memory is short.

        A prefill goes in whole unless it would cost a more critical request of the class its deadline.
        """
        for item in live:
            sequence = item.sequence
            self._make_room(builder, sequence)
            if sequence.status is Status.ROTATED and not builder.rotate_in(sequence):
                continue
            builder.decode(sequence)
        limit_s = math.inf
        for item in live:
            sequence = item.sequence
            if sequence.prefill_left and sequence.status is not Status.ROTATED:
                builder.prefill(sequence, builder.largest_prefill(sequence, limit_s))
            limit_s = min(limit_s, allowance(sequence, self.model, self.decay, builder.now, Reserve()).even_s)

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
        for item in (*kept, *given_up):
            self._decode_within(builder, item.sequence, decode_limit_s)
        limit_s = min(allowed.burst_s(builder.step_s, self.planner.burst_share), self._peers_limit_s(builder, kept))
        for item in (*kept, *given_up):
            sequence = item.sequence
            if not sequence.prefill_left or sequence.status is Status.ROTATED:
                continue
            if sequence.status is Status.WAITING and (
                in_flight >= self.planner.loose_limit(builder.config.max_running)
                or running >= LOOSE_SHARE * builder.config.max_running
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
            sequence = item.sequence
            if sequence.prefill_left and sequence.status is not Status.ROTATED:
                builder.prefill(sequence, builder.largest_prefill(sequence, limit_s))
            elif not sequence.prefill_left:
                self._decode_within(builder, sequence, limit_s)

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
        return spare >= (builder.domain.device_blocks.total // 10 if needs_air else 0) and builder.rotate_in(sequence)

    def _load_share(self, builder: StepBuilder, level: int) -> float:
        """Share of this domain's time that arrivals at least as urgent as this class will take."""
        return self._classes.load_share(builder.now, level) / builder.domains_up

    def _idle_cap_s(self, now: float, level: int) -> float:
        """Step cap while nothing more urgent is alive: what the tightest contract above can bear to wait, and never
        less than it takes to share a step.
        """
        cap_s = self.planner.idle_step_share * self._classes.initial_slack_s(now, level)
        return max(cap_s, LEAST_CAP_STEPS * self.model.decode_step_s(0))

    def _split(self, builder: StepBuilder, live: list[_Live]) -> tuple[list[_Live], list[_Live]]:
        """Those that can all make it together, and those to give up; each with the least work left first.

        In overload, requests in deadline order would all be brought near to their ends and all be late.
        """
        if not live:
            return [], []
        share = self._share_left(builder, live)
        batch = max(min(len(live), self.planner.loose_limit(builder.config.max_running)), 1)
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

    def _make_room(self, builder: StepBuilder, sequence: SequenceState) -> None:
        """Preempt just enough of strictly less urgent work for this sequence to run, the least urgent first."""
        needed = builder.blocks_needed(sequence)
        if self._has_room(builder, sequence, needed):
            return
        level = self._classes.level(sequence)
        victims = sorted(
            (s for s in builder.domain.running.values() if self._classes.level(s) > level),
            key=lambda s: (self._classes.level(s), s.deadline_s, s.sequence_id),
        )
        while victims and not self._has_room(builder, sequence, needed):
            builder.preempt(victims.pop())

    @staticmethod
    def _has_room(builder: StepBuilder, sequence: SequenceState, blocks: int) -> bool:
        enters = sequence.status is not Status.RUNNING
        return builder.domain.device_blocks.free >= blocks and (builder.has_room or not enters)
