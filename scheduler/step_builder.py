"""The mechanism every policy shares: put work into the next step within token, sequence and memory limits.

A policy says what should go in; the builder says whether it fits, takes the KV blocks, and keeps the step's
predicted time up to date. Comparing policies on one mechanism compares policies.
"""

from __future__ import annotations

import math

import numpy as np

from superinfer.profiler.latency_model import StepShape
from superinfer.scheduler.bandwidth import BandwidthGate
from superinfer.scheduler.columns import RUNNING, SEQUENCE_ID, STATUS, IntArray
from superinfer.scheduler.domain import DomainState
from superinfer.scheduler.kernels import (
    STOP_CROWDED,
    STOP_MAY_PREFILL,
    STOP_PREFILL,
    STOP_ROTATED,
    STOP_ROTATED_PREFILL,
    STOP_SHORT,
    largest_chunk,
    next_prefill,
    plan_decodes,
)
from superinfer.scheduler.sequence import SequenceState, Status
from superinfer.scheduler.step_memory import Ground, StepMemory
from superinfer.scheduler.steps import SequenceStep


class StepBuilder(StepMemory):
    """Collects one step of one domain."""

    def __init__(
        self, domain: DomainState, ground: Ground, now: float, *, domains_up: int = 1, gate: BandwidthGate | None = None
    ) -> None:
        super().__init__(domain, ground, now, gate)
        self.model = ground.model
        self.domains_up = domains_up
        self.shape = StepShape()
        self.chunks: list[SequenceStep] = []
        self.prefills: list[SequenceState] = []
        self.decode_blocks: list[tuple[int, int]] = []

    @property
    def steps(self) -> int:
        """How many sequences have work in the step."""
        return self.shape.decodes + len(self.chunks)

    @property
    def chosen_rows(self) -> IntArray:
        """The rows of the sequences that decode, in the order in which they were put in; until the next step."""
        return self.ground.chosen[: self.shape.decodes]

    @property
    def tokens_left(self) -> int:
        """Token budget of this step that is not used yet."""
        return self.config.max_step_tokens - self.shape.tokens

    @property
    def step_s(self) -> float:
        """Predicted time of the step as it is now."""
        return self.model.step_s(self.shape)

    def owner(self, row: int) -> SequenceState:
        """Whose row this is."""
        sequence = self.table.owners[row]
        assert sequence is not None
        return sequence

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
        growing, table = self.ground.growing[:count], self.table
        for own, block in zip(map(table.block_lists.__getitem__, growing.tolist()), blocks, strict=True):
            own.append(block)
        self.decode_blocks += zip(table.counts[growing, SEQUENCE_ID].tolist(), blocks, strict=True)

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
