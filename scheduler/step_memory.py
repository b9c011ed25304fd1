"""Who enters, leaves and comes back in a step, and the KV blocks that go with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.bandwidth import BandwidthGate
from superinfer.scheduler.columns import FloatArray, IntArray, SequenceTable
from superinfer.scheduler.config import SchedulerConfig
from superinfer.scheduler.domain import DomainState
from superinfer.scheduler.kernels import Constants, model_columns
from superinfer.scheduler.prefix_cache import find_prefix, share
from superinfer.scheduler.queues import WaitingQueues
from superinfer.scheduler.sequence import SequenceState, Status
from superinfer.scheduler.steps import NewSequence, Rotation

RequestSeconds = Callable[[str], float]


@dataclass(slots=True, eq=False)
class Ground:
    """What all steps of a scheduler's domains of one kind are built on, and the room in which compiled loops leave
    their results. Where kinds differ, `request_s` says what a request of a contract takes of one such domain.
    """

    table: SequenceTable
    queues: WaitingQueues
    model: LatencyModel
    config: SchedulerConfig
    constants: Constants
    points: FloatArray
    chosen: IntArray
    growing: IntArray
    efficient_chunk: int
    request_s: RequestSeconds | None = None

    @classmethod
    def of(
        cls,
        table: SequenceTable,
        queues: WaitingQueues,
        model: LatencyModel,
        config: SchedulerConfig,
        request_s: RequestSeconds | None = None,
    ) -> Ground:
        """The ground for steps of at most `config.max_step_tokens` tokens."""
        room = config.max_step_tokens + 1
        chosen, growing = np.empty(room, np.int64), np.empty(room, np.int64)
        columns = model_columns(model)
        return cls(table, queues, model, config, *columns, chosen, growing, model.efficient_chunk, request_s)


class StepMemory:
    """What a step does to the memory of its domain."""

    def __init__(self, domain: DomainState, ground: Ground, now: float, gate: BandwidthGate | None = None) -> None:
        self.domain = domain
        self.ground = ground
        self.table = ground.table
        self.queues = ground.queues
        self.config = ground.config
        self.now = now
        self.gate = gate
        self.new_sequences: list[NewSequence] = []
        self.rotate_out_list: list[Rotation] = []
        self.rotate_in_list: list[Rotation] = []
        self.copies: list[tuple[int, int]] = []
        self.lent: list[int] = []
        self.saves: list[tuple[int, int]] = []
        self.partial_saves: list[tuple[int, int, int, int]] = []
        self.saved_before: dict[int, int] = {}
        self.has_preempted = False
        self.stamp = ground.table.next_stamp()
        self._held_back: set[int] = set()
        self._rotated_in: set[int] = set()
        self._vacated_host_blocks: list[int] = []

    @property
    def has_room(self) -> bool:
        """Whether another sequence may enter the domain."""
        return len(self.domain.running) < self.config.max_running

    def is_planned(self, sequence: SequenceState) -> bool:
        """Whether the sequence already has work in this step."""
        return sequence.planned_in == self.stamp

    def hold_back(self, sequences: Iterable[SequenceState]) -> None:
        """Give these no work in this step; they may be preempted all the same."""
        for sequence in sequences:
            self._held_back.add(sequence.sequence_id)
            sequence.planned_in = self.stamp

    def preempt(self, sequence: SequenceState) -> bool:
        """Take a running sequence's blocks: rotate it out, or where host memory is full let it be computed anew.

        A sequence with a step in flight cannot be computed anew yet, since tokens of it are still to come: it gets no
        work in this step, so that it can in the next one.
        """
        has_work = self.is_planned(sequence) and sequence.sequence_id not in self._held_back
        if has_work or sequence.status is not Status.RUNNING:
            return False
        if sequence.sequence_id in self._rotated_in:
            return False
        if not self.rotate_out(sequence):
            if sequence.in_flight:
                self.hold_back([sequence])
                return False
            if self.config.prefix_cache:
                share(sequence, self.domain, sequence.computed, self.config.block_size)
            self._release(sequence.blocks)
            del self.domain.running[sequence.sequence_id]
            self.domain.finished.append(sequence.sequence_id)
            self.domain.recomputations += 1
            if self.gate is not None:
                self.gate.left(sequence, self.now)
            sequence.restart()
            sequence.enter_stage("queue", self.now)
            self.queues.push(sequence)
        self.has_preempted = True
        return True

    def rotate_out(self, sequence: SequenceState) -> bool:
        """Move a running sequence's KV to host memory, where it is not saved yet; False where the host pool is full."""
        saved, begin = sequence.host_blocks, sequence.saved_tokens // self.config.block_size
        sequence.host_blocks, sequence.saved_tokens = [], 0
        if self.config.save_interval_s is not None:
            self._make_host_room(len(sequence.blocks) - len(saved))
        more = self.domain.host_blocks.take(len(sequence.blocks) - len(saved))
        if more is None:
            self.domain.host_blocks.give_back(saved)
            return False
        host = [*saved, *more]
        self.rotate_out_list.append(
            Rotation(
                sequence_id=sequence.sequence_id,
                pairs=list(zip(sequence.blocks[begin:], host[begin:], strict=True)),
            )
        )
        self._release(sequence.blocks)
        self.domain.rotations += 1
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
        if self.config.save_interval_s is None:
            self._vacated_host_blocks.extend(sequence.host_blocks)
            sequence.host_blocks = []
        else:
            # What is left behind is a copy of all that was computed.
            sequence.saved_tokens = min(sequence.computed, len(sequence.host_blocks) * self.config.block_size)
        sequence.blocks = device
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
        if sequence.status is Status.RUNNING:
            return max(-(-(sequence.computed + 1) // self.config.block_size) - len(sequence.blocks), 0)
        lent = 0
        kept = sequence.kept_in(self.domain.memory)
        if kept is not None:
            lent = self.domain.count_lent(self.domain.memory.left_of(kept))
        return -(-(sequence.prefill_target + 1) // self.config.block_size) - lent

    def _grow(self, sequence: SequenceState, tokens: int) -> list[int] | None:
        missing = -(-tokens // self.config.block_size) - len(sequence.blocks)
        if missing <= 0:
            return []
        blocks = self.domain.device_blocks.take(missing)
        if blocks is not None:
            sequence.add_blocks(blocks)
        return blocks

    def _claim(self, sequence: SequenceState) -> bool:
        """Give an entering sequence the blocks that hold its KV already; False, and nothing changed, where room for the
        rest of its prompt is lacking.
        """
        domain, size, kept = self.domain, self.config.block_size, sequence.kept_in(self.domain.memory)
        goes_on = kept is not None
        if kept is None and self.config.prefix_cache:
            kept = find_prefix(sequence, domain, size)
            if not sequence.domain_ids:
                sequence.cached_tokens = 0 if kept is None else kept.tokens
        blocks = [] if kept is None else domain.memory.left_of(kept)
        lent = domain.count_lent(blocks)
        tokens = 0 if kept is None else min(kept.tokens, len(blocks) * size)
        # Another domain's block can be read but not written to: where it is not full it is copied.
        # What an accelerator does not have in its own memory it cannot even read.
        copied = lent if not domain.device_outlives else int(tokens % size > 0 and not domain.owns(blocks[-1]))
        if -(-(sequence.prefill_target + 1) // size) - lent + copied > domain.device_blocks.free:
            return False
        sequence.kept = None
        sequence.blocks = [] if kept is None else domain.memory.claim(kept)
        sequence.computed = tokens
        if not (goes_on and tokens):
            sequence.precision = domain.precision
        elif sequence.precision != domain.precision:
            sequence.precision = None
        for position in range(len(blocks) - 1, -1, -1):
            if not copied:
                break
            if not domain.owns(blocks[position]):
                own = domain.device_blocks.take(1)
                assert own is not None
                self.copies.append((blocks[position], own[0]))
                self.lent.append(blocks[position])
                sequence.blocks[position] = own[0]
                copied -= 1
        return True

    def save(self) -> None:
        """Copy to the host pool what running sequences have computed since it was saved, where the time for that has
        come. The copy is made before the step, and so before anything that the step puts into these blocks.
        """
        domain, config, size = self.domain, self.config, self.config.block_size
        if config.save_interval_s is None or self.now - domain.saved_s < config.save_interval_s:
            return
        domain.saved_s = self.now
        for sequence in domain.running.values():
            is_full = config.save_strategy == "full"
            if sequence.saved_tokens == sequence.computed and not is_full:
                continue
            saved, used = 0 if is_full else sequence.saved_tokens, -(-sequence.computed // size)
            more = domain.host_blocks.take(max(used - len(sequence.host_blocks), 0))
            if more is None:
                continue
            sequence.host_blocks = [*sequence.host_blocks, *more]
            self.saved_before[sequence.sequence_id] = sequence.saved_tokens
            for index in range(saved // size, used):
                pair = sequence.blocks[index], sequence.host_blocks[index]
                first, end = max(saved - index * size, 0), min(sequence.computed - index * size, size)
                if end - first == size:
                    self.saves.append(pair)
                else:
                    self.partial_saves.append((*pair, first, end))
            sequence.saved_tokens = sequence.computed

    def _make_host_room(self, blocks: int) -> None:
        """Give up saved copies of running sequences, the last to come first: who is rotated out needs the room more.

        Not of those that come back in this step: a worker rotates out first, which would overwrite them.
        """
        for sequence in reversed(list(self.domain.running.values())):
            if self.domain.host_blocks.free >= blocks:
                return
            if sequence.sequence_id in self._rotated_in:
                continue
            self.domain.host_blocks.give_back(sequence.host_blocks)
            sequence.host_blocks, sequence.saved_tokens = [], 0

    def _release(self, blocks: list[int]) -> None:
        """Give device blocks back; what another domain lends once the step that still reads it is over."""
        if self.domain.segment is None:
            self.domain.memory.give_back(blocks)
            return
        self.domain.memory.give_back([block for block in blocks if self.domain.owns(block)])
        self.lent += [block for block in blocks if not self.domain.owns(block)]

    def _may_enter(self, sequence: SequenceState) -> bool:
        if sequence.is_isolated and any(other.is_isolated for other in self.domain.running.values()):
            return False
        return self.gate is None or self.gate.may_enter(self.domain.domain_id, sequence, self.now)

    def _enter(self, sequence: SequenceState) -> None:
        if self.gate is not None:
            self.gate.entered(self.domain.domain_id, sequence, self.now)
        enter(sequence, self.domain, self.queues, self.now)
        prompt = sequence.request.prompt_token_ids
        self.new_sequences.append(
            NewSequence(
                sequence_id=sequence.sequence_id,
                token_ids=[*prompt, *sequence.outputs] if sequence.outputs else prompt,
                prompt_length=sequence.prompt_length,
                sampling=sequence.request.sampling,
                blocks=list(sequence.blocks[: -(-sequence.computed // self.config.block_size)]),
                computed=sequence.computed,
            )
        )


def enter(sequence: SequenceState, domain: DomainState, queues: WaitingQueues, now: float) -> None:
    """A waiting sequence, which has its blocks, runs on a domain from now on."""
    queues.remove(sequence)
    sequence.status = Status.RUNNING
    sequence.domain = domain
    sequence.known_to_worker = True
    if not sequence.domain_ids or sequence.domain_ids[-1] != domain.domain_id:
        sequence.domain_ids.append(domain.domain_id)
    if sequence.stage == "queue":
        sequence.enter_stage("prefill", now)
    domain.running[sequence.sequence_id] = sequence
