"""The mechanism every policy shares: put work into the next step within token, sequence and memory limits.

A policy says what should go in; the builder says whether it fits, takes the KV blocks, and keeps the step's
predicted time up to date. Comparing policies on one mechanism compares policies.
"""

from __future__ import annotations

from superinfer.profiler.latency_model import LatencyModel, StepShape
from superinfer.scheduler.config import SchedulerConfig
from superinfer.scheduler.domain import DomainState
from superinfer.scheduler.queues import WaitingQueues
from superinfer.scheduler.sequence import SequenceState, Status
from superinfer.scheduler.steps import NewSequence, Rotation, SequenceStep


class StepBuilder:
    """Collects one step of one domain."""

    def __init__(
        self,
        domain: DomainState,
        queues: WaitingQueues,
        model: LatencyModel,
        config: SchedulerConfig,
        now: float,
        *,
        domains_up: int = 1,
    ) -> None:
        self.domain = domain
        self.queues = queues
        self.model = model
        self.config = config
        self.now = now
        self.domains_up = domains_up
        self.shape = StepShape()
        self.steps: list[SequenceStep] = []
        self.sequences: list[SequenceState] = []
        self.new_sequences: list[NewSequence] = []
        self.rotate_out_list: list[Rotation] = []
        self.rotate_in_list: list[Rotation] = []
        self.has_preempted = False
        self._planned: set[int] = set()
        self._rotated_in: set[int] = set()
        self._vacated_host_blocks: list[int] = []

    @property
    def tokens_left(self) -> int:
        """Token budget of this step that is not used yet."""
        return self.config.max_step_tokens - self.shape.tokens

    @property
    def step_s(self) -> float:
        """Predicted time of the step as it is now."""
        return self.model.step_s(self.shape)

    @property
    def has_room(self) -> bool:
        """Whether another sequence may enter the domain."""
        return len(self.domain.running) < self.config.max_running

    def is_planned(self, sequence: SequenceState) -> bool:
        """Whether the sequence already has work in this step."""
        return sequence.sequence_id in self._planned

    def step_s_with_decode(self, sequence: SequenceState) -> float:
        """Predicted time of the step if this sequence decoded in it too."""
        return self._step_s_with(1, 1, sequence.computed, 0.0, 1, 0)

    def step_s_with_prefill(self, sequence: SequenceState, count: int) -> float:
        """Predicted time of the step if `count` prompt tokens of this sequence went in too."""
        samples = count >= sequence.prefill_left
        return self._step_s_with(count, 0, 0, count * (sequence.computed + (count + 1) / 2), samples, 1)

    @property
    def least_step_s_with_decode(self) -> float:
        """Predicted time of the step with one more decode of the shortest context there could be."""
        return self._step_s_with(1, 1, 0, 0.0, 1, 0)

    @property
    def least_step_s_with_prefill(self) -> float:
        """Predicted time of the step with the smallest prefill chunk there could be."""
        return self._step_s_with(1, 0, 0, 1.0, 0, 1)

    def _step_s_with(self, tokens: int, decodes: int, context: int, pairs: float, rows: int, chunks: int) -> float:
        shape = self.shape
        return self.model.step_s(
            StepShape(
                shape.tokens + tokens,
                shape.decodes + decodes,
                shape.decode_context + context,
                shape.prefill_pairs + pairs,
                shape.rows + rows,
                shape.chunks + chunks,
            )
        )

    def largest_prefill(self, sequence: SequenceState, limit_s: float) -> int:
        """The most prompt tokens of this sequence that keep the step within `limit_s`; 0 if none do."""
        high = min(sequence.prefill_left, self.tokens_left)
        if high <= 0 or self.step_s_with_prefill(sequence, 1) > limit_s:
            return 0
        if self.step_s_with_prefill(sequence, high) <= limit_s:
            return high
        low = 1
        while high - low > 1:
            middle = (low + high) // 2
            if self.step_s_with_prefill(sequence, middle) <= limit_s:
                low = middle
            else:
                high = middle
        return low

    def decode(self, sequence: SequenceState) -> bool:
        """Decode one token of a running sequence; False where budget or memory is short."""
        start, identity = sequence.computed, sequence.sequence_id
        if start < sequence.prefill_target or identity in self._planned or sequence.is_done_planning:
            return False
        if self.shape.tokens >= self.config.max_step_tokens:
            return False
        has_slot = start < len(sequence.blocks) * self.config.block_size
        blocks = [] if has_slot else self._grow(sequence, start + 1)
        if blocks is None:
            return False
        self._add(sequence, SequenceStep(
            sequence_id=identity, start=start, count=1, is_decode=True, new_blocks=blocks
        ))  # fmt: skip
        self.shape.add_decode(start)
        sequence.computed = start + 1
        sequence.planned_outputs += 1
        return True

    def prefill(self, sequence: SequenceState, count: int) -> int:
        """Prefill up to `count` tokens of a waiting or running sequence; returns how many went in."""
        count = min(count, sequence.prefill_left, self.tokens_left)
        if count <= 0 or self.is_planned(sequence):
            return 0
        enters = sequence.status is Status.WAITING
        if enters and not self.has_room:
            return 0
        # All blocks of the prompt are taken at once on entry: a prefill that ran out of memory half-way would hold
        # what it has and help nobody.
        goal = sequence.prefill_target + 1 if enters else sequence.computed + count
        blocks = self._grow(sequence, goal)
        if blocks is None:
            return 0
        if enters:
            self._enter(sequence)
        self._add(sequence, SequenceStep(
            sequence_id=sequence.sequence_id, start=sequence.computed, count=count, is_decode=False, new_blocks=blocks
        ))  # fmt: skip
        samples = count >= sequence.prefill_left
        self.shape.add_prefill(sequence.computed, count, samples=samples)
        sequence.computed += count
        sequence.planned_outputs += samples
        return count

    def preempt(self, sequence: SequenceState) -> bool:
        """Take a running sequence's blocks: rotate it out, or where host memory is full let it be computed anew.

        A sequence with a step in flight cannot be computed anew yet, since tokens of it are still to come.
        """
        if self.is_planned(sequence) or sequence.status is not Status.RUNNING:
            return False
        if sequence.sequence_id in self._rotated_in:
            return False
        if not self.rotate_out(sequence):
            if sequence.in_flight:
                return False
            self.domain.device_blocks.give_back(sequence.blocks)
            del self.domain.running[sequence.sequence_id]
            self.domain.finished.append(sequence.sequence_id)
            sequence.restart()
            sequence.enter_stage("queue", self.now)
            self.queues.push(sequence)
        self.has_preempted = True
        return True

    def rotate_out(self, sequence: SequenceState) -> bool:
        """Move a running sequence's KV to host memory; False where the host pool is full."""
        host = self.domain.host_blocks.take(len(sequence.blocks))
        if host is None:
            return False
        self.rotate_out_list.append(
            Rotation(sequence_id=sequence.sequence_id, pairs=list(zip(sequence.blocks, host, strict=True)))
        )
        self.domain.device_blocks.give_back(sequence.blocks)
        sequence.blocks, sequence.host_blocks = [], host
        sequence.status = Status.ROTATED
        sequence.enter_stage("rotated", self.now)
        del self.domain.running[sequence.sequence_id]
        self.domain.rotated[sequence.sequence_id] = sequence
        return True

    def rotate_in(self, sequence: SequenceState) -> bool:
        """Bring a rotated sequence's KV back; False where the device pool is short or it left in this very step."""
        left_now = any(rotation.sequence_id == sequence.sequence_id for rotation in self.rotate_out_list)
        if left_now or not self.has_room:
            return False
        device = self.domain.device_blocks.take(len(sequence.host_blocks))
        if device is None:
            return False
        self.rotate_in_list.append(
            Rotation(sequence_id=sequence.sequence_id, pairs=list(zip(sequence.host_blocks, device, strict=True)))
        )
        self._vacated_host_blocks.extend(sequence.host_blocks)
        sequence.blocks, sequence.host_blocks = device, []
        sequence.status = Status.RUNNING
        sequence.enter_stage("prefill" if sequence.first_token_s is None else "decode", self.now)
        del self.domain.rotated[sequence.sequence_id]
        self.domain.running[sequence.sequence_id] = sequence
        self._rotated_in.add(sequence.sequence_id)
        return True

    def close(self) -> None:
        """The plan is complete. Host blocks vacated by it are free from now on, not before: a worker rotates out first
        and in afterwards, so that a rotation out of the same plan would have overwritten them.
        """
        self.domain.host_blocks.give_back(self._vacated_host_blocks)
        self._vacated_host_blocks = []

    def blocks_needed(self, sequence: SequenceState) -> int:
        """Device blocks that the sequence lacks to enter, come back or take its next token."""
        if sequence.status is Status.ROTATED:
            return len(sequence.host_blocks)
        tokens = sequence.prefill_target + 1 if sequence.status is Status.WAITING else sequence.computed + 1
        return max(-(-tokens // self.config.block_size) - len(sequence.blocks), 0)

    def _grow(self, sequence: SequenceState, tokens: int) -> list[int] | None:
        missing = -(-tokens // self.config.block_size) - len(sequence.blocks)
        if missing <= 0:
            return []
        blocks = self.domain.device_blocks.take(missing)
        if blocks is not None:
            sequence.blocks.extend(blocks)
        return blocks

    def _enter(self, sequence: SequenceState) -> None:
        self.queues.remove(sequence)
        sequence.status = Status.RUNNING
        sequence.domain = self.domain
        sequence.known_to_worker = True
        if not sequence.domain_ids or sequence.domain_ids[-1] != self.domain.domain_id:
            sequence.domain_ids.append(self.domain.domain_id)
        if sequence.stage == "queue":
            sequence.enter_stage("prefill", self.now)
        self.domain.running[sequence.sequence_id] = sequence
        self.new_sequences.append(
            NewSequence(
                sequence_id=sequence.sequence_id,
                token_ids=[*sequence.request.prompt_token_ids, *sequence.outputs],
                prompt_length=sequence.prompt_length,
                sampling=sequence.request.sampling,
            )
        )

    def _add(self, sequence: SequenceState, step: SequenceStep) -> None:
        self._planned.add(sequence.sequence_id)
        self.steps.append(step)
        self.sequences.append(sequence)
        sequence.in_flight += 1
