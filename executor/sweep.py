"""Turns the points of a profile's sweep into step plans for any executor, and times those steps alone.

Cached contexts cost no prefill. What a step takes does not depend on what the cache holds, but on that every
sequence has blocks of its own in memory that has been written once: reading never-written memory would read
one shared page of zeros from the CPU's cache. So one block is computed, rotated out to host memory, and from
there rotated in to every block that the sweep uses.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from superinfer.profiler.sweep_points import SweepPoint
from superinfer.scheduler.request import SamplingParams
from superinfer.scheduler.steps import Executor, NewSequence, Rotation, SequenceStep, StepPlan, StepResult

HOST_BLOCKS = 1
"""Host blocks that an executor needs for the sweep (`WorkerConfig.host_blocks`)."""

_SAMPLING = SamplingParams(max_tokens=1_000_000, temperature=0.0, ignore_eos=True)


class SweepRunner:
    """Runs one point at a time on `executor`; each call is one timed step of fresh sequences.

    `waited_s` tells how long the executor has waited for its core so far. What it waited within a step is other
    processes' time and is taken off; `waited_share` is its share of all timed steps.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        vocab_size: int,
        block_size: int,
        domain_id: str = "profile",
        waited_s: Callable[[], float] | None = None,
        seed: int = 0,
    ) -> None:
        self._executor = executor
        self._block_size = block_size
        self._domain_id = domain_id
        self._random = random.Random(seed)
        self._vocab_size = vocab_size
        self._waited_s = waited_s or _never_waits
        self._total_waited_s = 0.0
        self._total_step_s = 0.0
        self._steps = 0
        self._sequences = 0
        self._written_blocks = 0
        self._live: list[int] = []

    def __call__(self, point: SweepPoint) -> float:
        """Seconds of the point's step on the device, by the executor's own clock."""
        self._write_blocks(point.blocks(self._block_size))
        new: list[NewSequence] = []
        decodes: list[int] = []
        decode_blocks: list[tuple[int, int]] = []
        chunks: list[SequenceStep] = []
        next_block = 0
        for context in point.contexts:
            # One token is already an output: the input of the decode, as if a prefill had just sampled it.
            new.append(self._new_sequence(context + 1, prompt_length=context))
            blocks = self._block_range(next_block, context + 1)
            next_block = blocks.stop
            decodes.append(new[-1].sequence_id)
            decode_blocks.extend((decodes[-1], block) for block in blocks)
        for chunk in point.chunks:
            end = chunk.start + chunk.count
            prompt_length = end if chunk.samples else end + 1
            new.append(self._new_sequence(prompt_length, prompt_length=prompt_length))
            blocks = self._block_range(next_block, end)
            next_block = blocks.stop
            chunks.append(
                SequenceStep(
                    sequence_id=new[-1].sequence_id, start=chunk.start, count=chunk.count, new_blocks=list(blocks)
                )
            )
        self._execute(finished=self._live, new_sequences=new)
        self._live = [sequence.sequence_id for sequence in new]
        waited_before_s = self._waited_s()
        sent_s = time.monotonic()
        step_s = self._execute(decodes=decodes, decode_blocks=decode_blocks, sequences=chunks).duration_s
        outside_step_s = max(time.monotonic() - sent_s - step_s, 0.0)
        # The executor may also have waited when the plan woke it up: before the step, so not part of its time.
        waited_s = max(self._waited_s() - waited_before_s - outside_step_s, 0.0)
        if waited_s >= step_s:
            waited_s = 0.0
        self._total_waited_s += waited_s
        self._total_step_s += step_s
        return step_s - waited_s

    @property
    def waited_share(self) -> float:
        """The share of the timed steps' time in which the executor waited for its core."""
        return self._total_waited_s / self._total_step_s if self._total_step_s else 0.0

    def close(self) -> None:
        """Finish the sequences of the last point."""
        self._execute(finished=self._live)
        self._live = []

    def _write_blocks(self, count: int) -> None:
        """Make sure that device blocks 0 … count − 1 have been written."""
        if self._written_blocks == 0:
            source = self._new_sequence(self._block_size + 1, prompt_length=self._block_size + 1)
            step = SequenceStep(
                sequence_id=source.sequence_id,
                start=0,
                count=self._block_size,
                new_blocks=[0],
            )
            self._execute(new_sequences=[source], sequences=[step])
            self._execute(rotate_out=[Rotation(sequence_id=source.sequence_id, pairs=[(0, 0)])])
            self._execute(finished=[source.sequence_id])
            self._written_blocks = 1
        if count > self._written_blocks:
            target = self._new_sequence(1, prompt_length=1)
            pairs = [(0, block) for block in range(self._written_blocks, count)]
            self._execute(new_sequences=[target])
            self._execute(rotate_in=[Rotation(sequence_id=target.sequence_id, pairs=pairs)])
            self._execute(finished=[target.sequence_id])
            self._written_blocks = count

    def _block_range(self, first: int, tokens: int) -> range:
        return range(first, first - (-tokens // self._block_size))

    def _new_sequence(self, tokens: int, *, prompt_length: int) -> NewSequence:
        self._sequences += 1
        return NewSequence(
            sequence_id=self._sequences,
            token_ids=self._random.choices(range(self._vocab_size), k=tokens),
            prompt_length=prompt_length,
            sampling=_SAMPLING,
        )

    def _execute(
        self,
        *,
        finished: list[int] | None = None,
        rotate_out: list[Rotation] | None = None,
        rotate_in: list[Rotation] | None = None,
        new_sequences: list[NewSequence] | None = None,
        decodes: list[int] | None = None,
        decode_blocks: list[tuple[int, int]] | None = None,
        sequences: list[SequenceStep] | None = None,
    ) -> StepResult:
        self._steps += 1
        return self._executor.execute(
            StepPlan(
                domain_id=self._domain_id,
                step_id=self._steps,
                finished=finished or [],
                rotate_out=rotate_out or [],
                rotate_in=rotate_in or [],
                new_sequences=new_sequences or [],
                decodes=decodes or [],
                decode_blocks=decode_blocks or [],
                sequences=sequences or [],
            )
        )


def _never_waits() -> float:
    return 0.0
