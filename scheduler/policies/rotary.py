"""Policies that rotate before memory runs out: the published SuperInfer (arXiv 2601.20309) as its paper describes it
and as its code does it.

Both keep new and rotated sequences in one queue, and act only while the KV pool cannot hold everybody. The amount
moved is bounded by a budget in blocks. The published runs set 2,400 blocks whatever the pool; here it is a share of
the pool, so that it means the same on every device.
"""

from __future__ import annotations

import math
from abc import abstractmethod

from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.kernels import blocks_lacking
from superinfer.scheduler.policies.budget import BudgetPolicy
from superinfer.scheduler.sequence import SequenceState, Status
from superinfer.scheduler.step_builder import StepBuilder

BUDGET_SHARE = 0.1
"""Blocks that may be rotated for one step, as a share of the device pool."""


class RotaryPolicy(BudgetPolicy):
    """Rotate first where memory is short, then compose as all rivals do, with one queue for rotated and waiting."""

    def __init__(self) -> None:
        self._running_since_s: dict[int, float] = {}

    @abstractmethod
    def rotate(self, builder: StepBuilder) -> None:
        """Move running sequences out; called while not everybody fits."""

    def compose(self, builder: StepBuilder) -> None:
        """Rotate, then fill the step."""
        if not everybody_fits(builder):
            self.rotate(builder)
        super().compose(builder)

    def bring_in(self, builder: StepBuilder) -> None:
        """Rotated and waiting sequences in one order, until the first that does not fit."""
        while builder.tokens_left > 0 and builder.has_room:
            best = self.next_outside(builder)
            if best is None or not self.admit(builder, best, builder.tokens_left):
                return

    def admit(self, builder: StepBuilder, sequence: SequenceState, tokens: int) -> bool:
        """Note when the sequence began to run."""
        admitted = super().admit(builder, sequence, tokens)
        if admitted:
            self._running_since_s[sequence.sequence_id] = builder.now
        return admitted

    def on_finish(self, sequence: SequenceState, now: float) -> None:
        """Forget it."""
        self._running_since_s.pop(sequence.sequence_id, None)

    def running_since_s(self, sequence: SequenceState) -> float:
        """When a running sequence entered or came back."""
        return self._running_since_s[sequence.sequence_id]

    def next_outside(self, builder: StepBuilder) -> SequenceState | None:
        """The first of the rotated (but for those that left in this step) and the contracts' heads."""
        left = {rotation.sequence_id for rotation in builder.rotate_out_list}
        outside = [s for s in builder.domain.rotated.values() if s.sequence_id not in left]
        if (waiting := self.next_waiting(builder)) is not None:
            outside.append(waiting)
        return min(outside, key=lambda s: self.rank(s, builder.now), default=None)

    @staticmethod
    def budget_blocks(builder: StepBuilder) -> int:
        """Blocks that may be rotated for one step."""
        return int(BUDGET_SHARE * builder.domain.device_blocks.total)


class VirtualLagRotation(RotaryPolicy):
    """RotaSched: the largest virtual lag first.

    The lag of a waiting sequence is ReLU(t − arrival − β_F · S_F), of a rotated one α · ReLU(t − last token − β_B ·
    S_B), of a running one −(t − start of running), where S_F and S_B are the bounds on time to first token and time per
    token. A sequence outside whose lag is positive takes the place of those that have run longest.

    Lags of equals grow past each other again and again. Hence hysteresis: a sequence runs for `QUANTUM_STEPS` steps
    before it can be displaced, and never takes the place of one that has taken its own.
    """

    name = "vlt"
    ALPHA = 3.0
    BETA_FIRST = 0.5
    BETA_BETWEEN = 0.0
    QUANTUM_STEPS = 16

    def __init__(self, model: LatencyModel) -> None:
        super().__init__()
        self._model = model
        self._displaced: dict[int, set[int]] = {}
        self._waiting_keys: dict[int, float] = {}

    def lag_s(self, sequence: SequenceState, now: float) -> float:
        """The virtual lag. A rotated sequence's last token is taken to be from when it was rotated out."""
        if sequence.status is Status.WAITING:
            return max(now - self.waiting_key(sequence), 0.0)
        if sequence.status is Status.ROTATED:
            bound_s = self.BETA_BETWEEN * sequence.tpot_s if self.BETA_BETWEEN else 0.0
            return self.ALPHA * max(now - sequence.stage_since_s - bound_s, 0.0)
        return self.running_since_s(sequence) - now

    def rank(self, sequence: SequenceState, now: float) -> tuple[float, ...]:
        """By lag, the largest first, then by when waiting would have begun to lag."""
        return (-self.lag_s(sequence, now), self.waiting_key(sequence), sequence.sequence_id)

    def waiting_key(self, sequence: SequenceState) -> float:
        """When a waiting sequence begins to lag, as predicted when it came."""
        key = self._waiting_keys.get(sequence.sequence_id)
        if key is None:
            key = sequence.arrival_s + self.BETA_FIRST * first_token_bound_s(sequence, self._model)
            self._waiting_keys[sequence.sequence_id] = key
        return key

    def on_finish(self, sequence: SequenceState, now: float) -> None:
        """Forget it, and whom it displaced."""
        super().on_finish(sequence, now)
        self._displaced.pop(sequence.sequence_id, None)
        self._waiting_keys.pop(sequence.sequence_id, None)

    def rotate(self, builder: StepBuilder) -> None:
        """Sequences outside displace the longest-running ones, in order of lag, within the budget of blocks.

        The budget never keeps the first one out, which may be larger than it.
        """
        moved = 0
        while (challenger := self.next_outside(builder)) is not None and self.lag_s(challenger, builder.now) > 0.0:
            victims = self._victims(builder, challenger)
            if victims is None:
                return
            blocks = sum(len(victim.blocks) for victim in victims) + builder.blocks_needed(challenger)
            tokens = builder.tokens_left - self._decodes_due(builder) + len(victims)
            if (moved and moved + blocks > self.budget_blocks(builder)) or tokens < 1:
                return
            for victim in victims:
                builder.rotate_out(victim)
                self._note_displaced(challenger, victim)
            if not self.admit(builder, challenger, tokens):
                return
            moved += blocks

    def _victims(self, builder: StepBuilder, challenger: SequenceState) -> list[SequenceState] | None:
        """Who has to go so that the challenger can run: nobody, some, or None where that is not to be had."""
        device, host = builder.domain.device_blocks.free, builder.domain.host_blocks.free
        running = len(builder.domain.running)
        needed = builder.blocks_needed(challenger)
        victims: list[SequenceState] = []
        shortest_quantum_s = self.QUANTUM_STEPS * builder.model.decode_step_s(0)
        for candidate in map(builder.owner, reversed(self.running_rows(builder))):
            if device >= needed and running < builder.config.max_running:
                break
            if host < 1 or builder.now - self.running_since_s(candidate) < shortest_quantum_s:
                break  # nobody who began later has run longer
            if not self._may_displace(builder, challenger, candidate) or len(candidate.blocks) > host:
                continue
            victims.append(candidate)
            device, host, running = device + len(candidate.blocks), host - len(candidate.blocks), running - 1
        return victims if device >= needed and running < builder.config.max_running else None

    def _may_displace(self, builder: StepBuilder, challenger: SequenceState, runner: SequenceState) -> bool:
        if builder.is_planned(runner) or not runner.can_decode:
            return False
        if self._has_displaced(runner, challenger):
            return False
        quantum_s = self.QUANTUM_STEPS * builder.model.decode_step_s(runner.computed)
        return builder.now - self.running_since_s(runner) >= quantum_s

    def gives_way(self, builder: StepBuilder, sequence: SequenceState) -> SequenceState:
        """The one that has run longest, but for those that have taken this one's place before."""
        candidates = map(builder.owner, reversed(self.running_rows(builder)))
        victim = next(
            s for s in candidates if s is sequence or not (builder.is_planned(s) or self._has_displaced(s, sequence))
        )
        if victim is not sequence:
            self._note_displaced(sequence, victim)
        return victim

    def _note_displaced(self, by: SequenceState, victim: SequenceState) -> None:
        self._displaced.setdefault(by.sequence_id, set()).add(victim.sequence_id)

    def _has_displaced(self, one: SequenceState, other: SequenceState) -> bool:
        return other.sequence_id in self._displaced.get(one.sequence_id, ())

    @staticmethod
    def _decodes_due(builder: StepBuilder) -> int:
        return sum(s.can_decode and not builder.is_planned(s) for s in builder.domain.running.values())


class AgeRotation(RotaryPolicy):
    """What the public code of the published SuperInfer does: no lag, no bounds, only ages.

    While not everybody fits and fewer blocks are free than the budget, the sequences that have been decoding longest
    are rotated out, up to the budget. Those outside come in by how long they have been outside; while the host pool
    is nearly full, only rotated ones do. There is no hysteresis: equals take turns, at worst at every step.
    """

    name = "age_rotation"
    HOST_FULL_TO_ROTATE = 0.95
    HOST_FULL_TO_ENTER = 0.9

    def rank(self, sequence: SequenceState, now: float) -> tuple[float, ...]:
        """Running: by when it began to; outside: by when it left, or arrived."""
        if sequence.status is Status.RUNNING:
            return (self.running_since_s(sequence), sequence.sequence_id)
        return (sequence.stage_since_s, sequence.sequence_id)

    def waiting_key(self, sequence: SequenceState) -> float:
        """Since when it has been outside."""
        return sequence.stage_since_s

    def next_waiting(self, builder: StepBuilder) -> SequenceState | None:
        """Nobody new while the host pool is nearly full."""
        return None if host_usage(builder) > self.HOST_FULL_TO_ENTER else super().next_waiting(builder)

    def rotate(self, builder: StepBuilder) -> None:
        """The longest-running decodes, as long as their blocks stay below the budget."""
        budget = self.budget_blocks(builder)
        if builder.domain.device_blocks.free >= budget or host_usage(builder) >= self.HOST_FULL_TO_ROTATE:
            return
        for sequence in map(builder.owner, self.running_rows(builder)):
            if not sequence.can_decode:
                continue
            budget -= len(sequence.blocks)
            if budget <= 0 or not builder.rotate_out(sequence):
                return


def everybody_fits(builder: StepBuilder) -> bool:
    """Whether the free blocks suffice for the next token of all running, rotated and waiting sequences."""
    domain, counts, size = builder.domain, builder.table.counts, builder.config.block_size
    lacking = blocks_lacking(counts, domain.running.rows, size) + builder.queues.blocks_wanted()
    if domain.rotated:
        lacking += blocks_lacking(counts, domain.rotated.rows, size)
    return lacking <= domain.device_blocks.free


def host_usage(builder: StepBuilder) -> float:
    """Share of the host pool that rotated sequences hold; 0 where there is no pool."""
    pool = builder.domain.host_blocks
    return 1.0 - pool.free / pool.total if pool.total else 0.0


def first_token_bound_s(sequence: SequenceState, model: LatencyModel) -> float:
    """S_F: the bound on time to first token, or what an end-to-end bound leaves for it when the decodes run alone."""
    first_s = sequence.ttft_deadline_s - sequence.arrival_s
    whole_s = sequence.deadline_s - sequence.arrival_s
    if math.isfinite(whole_s):
        decodes_s = model.decodes_s(sequence.prompt_length + 1, max(sequence.expected_outputs - 1, 0))
        first_s = min(first_s, max(whole_s - decodes_s, 0.0))
    return first_s
