"""The mechanism every policy shares: put work into the next step within token, sequence and memory limits.

A policy says what should go in; the builder says whether it fits, takes the KV blocks, and keeps the step's
predicted time up to date. Comparing policies on one mechanism compares policies.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from superinfer.profiler.latency_model import LatencyModel, StepShape
from superinfer.scheduler.bandwidth import BandwidthGate
from superinfer.scheduler.columns import RUNNING, STATUS, FloatArray, IntArray, SequenceTable
from superinfer.scheduler.config import SchedulerConfig
from superinfer.scheduler.domain import DomainState
from superinfer.scheduler.kernels import (
    STOP_CROWDED,
    STOP_MAY_PREFILL,
    STOP_PREFILL,
    STOP_ROTATED,
    STOP_ROTATED_PREFILL,
    STOP_SHORT,
    Constants,
    largest_chunk,
    model_columns,
    next_prefill,
    plan_decodes,
)
from superinfer.scheduler.prefix_cache import find_prefix, share
from superinfer.scheduler.queues import WaitingQueues
from superinfer.scheduler.sequence import SequenceState, Status
from superinfer.scheduler.steps import NewSequence, Rotation, SequenceStep


@dataclass(slots=True, eq=False)
class Ground:
    """What all steps of a scheduler are built on, and the room in which compiled loops leave their results."""

    table: SequenceTable
    queues: WaitingQueues
    model: LatencyModel
    config: SchedulerConfig
    constants: Constants
    points: FloatArray
    chosen: IntArray
    growing: IntArray

    @classmethod
    def of(cls, table: SequenceTable, queues: WaitingQueues, model: LatencyModel, config: SchedulerConfig) -> Ground:
        """The ground for steps of at most `config.max_step_tokens` tokens."""
        room = config.max_step_tokens + 1
        return cls(
            table, queues, model, config, *model_columns(model), np.empty(room, np.int64), np.empty(room, np.int64)
        )


class StepBuilder:
    """Collects one step of one domain."""

    def __init__(
        self, domain: DomainState, ground: Ground, now: float, *, domains_up: int = 1, gate: BandwidthGate | None = None
    ) -> None:
        self.domain = domain
        self.ground = ground
        self.table = ground.table
        self.queues = ground.queues
        self.model = ground.model
        self.config = ground.config
        self.now = now
        self.domains_up = domains_up
        self.gate = gate
        self.shape = StepShape()
        self.chunks: list[SequenceStep] = []
        self.prefills: list[SequenceState] = []
        self.decode_blocks: list[tuple[int, int]] = []
        self.new_sequences: list[NewSequence] = []
        self.rotate_out_list: list[Rotation] = []
        self.rotate_in_list: list[Rotation] = []
        self.copies: list[tuple[int, int]] = []
        self.lent: list[int] = []
        self.has_preempted = False
        self.stamp = ground.table.next_stamp()
        self._held_back: set[int] = set()
        self._rotated_in: set[int] = set()
        self._vacated_host_blocks: list[int] = []

    @property
    def steps(self) -> int:
        """How many sequences have work in the step."""
        return self.shape.decodes + len(self.chunks)

    @property
    def decode_rows(self) -> IntArray:
        """The rows of the sequences that decode, ascending: their order means nothing to a worker, and so the same
        sequences make the same batch.
        """
        rows = self.ground.chosen[: self.shape.decodes].copy()
        rows.sort()
        return rows

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

    def owner(self, row: int) -> SequenceState:
        """Whose row this is."""
        sequence = self.table.owners[row]
        assert sequence is not None
        return sequence

    def is_planned(self, sequence: SequenceState) -> bool:
        """Whether the sequence already has work in this step."""
        return sequence.planned_in == self.stamp

    def step_s_with_decode(self, sequence: SequenceState) -> float:
        """Predicted time of the step if this sequence decoded in it too."""
        return self._step_s_with(1, 1, sequence.computed, 0.0, 1, 0)

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
        left, shape = sequence.prefill_left, self.shape
        return largest_chunk(
            self.ground.constants,
            self.ground.points,
            self.model.correction,
            shape.tokens,
            shape.decodes,
            shape.decode_context,
            shape.prefill_pairs,
            shape.rows,
            shape.chunks,
            sequence.computed,
            left,
            min(left, self.tokens_left),
            limit_s,
        )

    def decode(self, sequence: SequenceState) -> bool:
        """Decode one token of a running sequence; False where budget or memory is short."""
        start = sequence.computed
        if start < sequence.prefill_target or self.is_planned(sequence) or sequence.is_done_planning:
            return False
        if self.tokens_left < 1 or sequence.status is not Status.RUNNING:
            return False
        blocks = self._grow(sequence, start + 1)
        if blocks is None:
            return False
        self.decode_blocks.extend((sequence.sequence_id, block) for block in blocks)
        self.ground.chosen[self.shape.decodes] = sequence.row
        self.shape.add_decode(start)
        sequence.computed = start + 1
        sequence.planned_outputs += 1
        sequence.in_flight += 1
        sequence.planned_in = self.stamp
        return True

    def decode_while_room(self, rows: IntArray, begin: int = 0) -> int:
        """Decode the running ones of these rows in order; returns the position of the first that lacks a block or has
        yet to be prefilled, len(rows) if there is none.
        """
        return self._decode(rows, begin, STOP_SHORT | STOP_PREFILL, math.inf)

    def decode_all(self, rows: IntArray, begin: int = 0, *, ask_for_room: bool) -> int:
        """Decode the running ones of these rows in order; returns the position of the first rotated one that could come
        back, or if `ask_for_room` of the first that lacks room for whatever it does next; len(rows) if there is none.
        """
        stops = STOP_ROTATED | STOP_ROTATED_PREFILL
        return self._decode(rows, begin, stops | STOP_SHORT | STOP_CROWDED if ask_for_room else stops, math.inf)

    def decode_within(self, rows: IntArray, limit_s: float, begin: int = 0, *, prefills: bool = False) -> int:
        """Decode those of these rows, in order, that keep the step within `limit_s` and do not lack a block; returns
        the position of the first rotated one that could decode and leave some air, or if `prefills` of the first of
        which a chunk could go in; len(rows) if there is none.
        """
        stops = STOP_ROTATED | STOP_MAY_PREFILL if prefills else STOP_ROTATED
        return self._decode(rows, begin, stops, limit_s, self.air_blocks)

    def next_prefill(self, rows: IntArray, begin: int = 0, *, entering: bool) -> int:
        """The position of the first of these rows that runs, or waits if `entering`, has yet to be prefilled and has no
        work in this step; len(rows) if there is none, or if the step has no token left.
        """
        if self.tokens_left < 1:
            return len(rows)
        return next_prefill(self.table.counts, rows, begin, self.stamp, entering)

    def count_running(self, rows: IntArray) -> int:
        """How many of these rows run."""
        return int(np.count_nonzero(self.table.counts[rows, STATUS] == RUNNING))

    @property
    def air_blocks(self) -> int:
        """Blocks that stay free when a sequence comes back that nobody waits for: a tenth."""
        return self.domain.device_blocks.total // 10

    def _decode(self, rows: IntArray, begin: int, stops: int, limit_s: float, air_blocks: int = 0) -> int:
        ground, shape, config, pool = self.ground, self.shape, self.config, self.domain.device_blocks
        position, planned, grown, context = plan_decodes(
            self.table.counts,
            rows,
            begin,
            stops,
            self.stamp,
            ground.constants,
            ground.points,
            self.model.correction,
            limit_s,
            shape.tokens,
            shape.decodes,
            shape.decode_context,
            shape.prefill_pairs,
            shape.rows,
            shape.chunks,
            config.max_step_tokens,
            config.block_size,
            pool.free,
            air_blocks,
            self.has_room,
            ground.chosen[shape.decodes :],
            ground.growing,
        )
        shape.tokens += planned
        shape.decodes += planned
        shape.decode_context += context
        shape.rows += planned
        self.grow_decodes(grown)
        return position

    def grow_decodes(self, count: int) -> None:
        """A block for each of the first `count` rows in `ground.growing`, which decode and have counted it already."""
        if not count:
            return
        blocks = self.domain.device_blocks.take(count)
        assert blocks is not None
        growing = self.table.sequences(self.ground.growing[:count])
        for sequence, block in zip(growing, blocks, strict=True):
            sequence.blocks.append(block)
            self.decode_blocks.append((sequence.sequence_id, block))

    def prefill(self, sequence: SequenceState, count: int) -> int:
        """Prefill up to `count` tokens of a waiting or running sequence; returns how many went in."""
        count = min(count, sequence.prefill_left, self.tokens_left)
        if count <= 0 or self.is_planned(sequence):
            return 0
        enters = sequence.status is Status.WAITING
        if enters and not (self.has_room and self._may_enter(sequence) and self._claim(sequence)):
            return 0
        count = min(count, sequence.prefill_left)
        # All blocks of the prompt are taken at once on entry: a prefill that ran out of memory half-way would hold
        # what it has and help nobody.
        goal = sequence.prefill_target + 1 if enters else sequence.computed + count
        blocks = self._grow(sequence, goal)
        if blocks is None:
            return 0
        if enters:
            self._enter(sequence)
        self.chunks.append(
            SequenceStep(sequence_id=sequence.sequence_id, start=sequence.computed, count=count, new_blocks=blocks)
        )
        self.prefills.append(sequence)
        sequence.planned_in = self.stamp
        sequence.in_flight += 1
        samples = count >= sequence.prefill_left
        self.shape.add_prefill(sequence.computed, count, samples=samples)
        sequence.computed += count
        sequence.planned_outputs += samples
        return count

    def hold_back(self, sequences: Iterable[SequenceState]) -> None:
        """Give these no work in this step; they may be preempted all the same."""
        for sequence in sequences:
            self._held_back.add(sequence.sequence_id)
            sequence.planned_in = self.stamp

    def preempt(self, sequence: SequenceState) -> bool:
        """Take a running sequence's blocks: rotate it out, or where host memory is full let it be computed anew.

        A sequence with a step in flight cannot be computed anew yet, since tokens of it are still to come.
        """
        has_work = self.is_planned(sequence) and sequence.sequence_id not in self._held_back
        if has_work or sequence.status is not Status.RUNNING:
            return False
        if sequence.sequence_id in self._rotated_in:
            return False
        if not self.rotate_out(sequence):
            if sequence.in_flight:
                return False
            if self.config.prefix_cache:
                share(sequence, self.domain.memory, sequence.computed, self.config.block_size)
            self._release(sequence.blocks)
            del self.domain.running[sequence.sequence_id]
            self.domain.finished.append(sequence.sequence_id)
            if self.gate is not None:
                self.gate.left(sequence, self.now)
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
        self._release(sequence.blocks)
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
        if sequence.status is Status.RUNNING:
            return max(-(-(sequence.computed + 1) // self.config.block_size) - len(sequence.blocks), 0)
        lent = 0
        if sequence.kept is not None:
            lent = sum(not self.domain.owns(block) for block in self.domain.memory.left_of(sequence.kept))
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
        domain, size, kept = self.domain, self.config.block_size, sequence.kept
        if kept is None and self.config.prefix_cache:
            kept = find_prefix(sequence, domain.memory, size)
            if not sequence.domain_ids:
                sequence.cached_tokens = 0 if kept is None else kept.tokens
        blocks = [] if kept is None else domain.memory.left_of(kept)
        lent = sum(not domain.owns(block) for block in blocks)
        tokens = 0 if kept is None else min(kept.tokens, len(blocks) * size)
        # Another domain's block can be read but not written to: where it is not full it is copied.
        copied = tokens % size > 0 and not domain.owns(blocks[-1])
        if -(-(sequence.prefill_target + 1) // size) - lent + copied > domain.device_blocks.free:
            return False
        sequence.kept = None
        sequence.blocks = [] if kept is None else domain.memory.claim(kept)
        sequence.computed = tokens
        if copied:
            own = domain.device_blocks.take(1)
            assert own is not None
            self.copies.append((blocks[-1], own[0]))
            self.lent.append(blocks[-1])
            sequence.blocks[-1] = own[0]
        return True

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
                blocks=list(sequence.blocks[: -(-sequence.computed // self.config.block_size)]),
                computed=sequence.computed,
            )
        )
