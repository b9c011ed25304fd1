"""What crosses the border between scheduler and executor: the plan of one step and its result."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from superinfer.scheduler.request import SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]


class NewSequence(msgspec.Struct, kw_only=True):
    """A sequence the worker has not seen (or lost when its predecessor died).

    `token_ids` is the prompt followed by every output token already committed elsewhere; `prompt_length` says
    where the prompt ends, so that penalties, max_tokens and seeded draws continue where they were.
    """

    sequence_id: int
    token_ids: list[int]
    prompt_length: int
    sampling: SamplingParams


class SequenceStep(msgspec.Struct, kw_only=True):
    """Compute the KV of tokens [start, start + count) of one sequence in this step.

    `new_blocks` are appended to the sequence's block table first. If start + count reaches the last token the
    worker knows, it samples the next token. A decode is the case count == 1 at the last token; `is_decode` tells
    it apart from a one-token prefill chunk. With steps planned ahead, a decode's input token may still be being
    sampled by the step before: the worker knows it by the time it runs this one.
    """

    sequence_id: int
    start: int
    count: int
    is_decode: bool
    new_blocks: list[int] = []


class Rotation(msgspec.Struct, kw_only=True):
    """Copy KV blocks between device pool and host pool: pairs of (source block, destination block).

    Rotating out: device → host, and the sequence's block table becomes empty. Rotating in: host → device, and
    the destinations, in order, become the sequence's block table.
    """

    sequence_id: int
    pairs: list[tuple[int, int]]


class StepPlan(msgspec.Struct, kw_only=True):
    """One engine step of one domain. The worker applies: finished, rotate_out, rotate_in, new, then computes."""

    domain_id: str
    step_id: int
    finished: list[int] = []
    rotate_out: list[Rotation] = []
    rotate_in: list[Rotation] = []
    new_sequences: list[NewSequence] = []
    sequences: list[SequenceStep] = []
    predicted_s: float = 0.0
    affinity_mask: int = 0

    @property
    def token_count(self) -> int:
        """Tokens whose KV this step computes."""
        return sum(step.count for step in self.sequences)


class SampledToken(msgspec.Struct, array_like=True):
    """One token sampled in a step; `finish` is set by the worker on an end-of-sequence token or at max_tokens.

    `output_index` counts from 0, so that nobody can take a token twice.
    """

    sequence_id: int
    output_index: int
    token_id: int
    finish: FinishReason | None = None


class StepResult(msgspec.Struct, kw_only=True):
    """What a worker reports of one step. Times are on the monotonic clock; `duration_s` is the worker's own.

    A sequence that finished in an earlier step is skipped by the worker and has no entry here.
    """

    domain_id: str
    step_id: int
    started_s: float
    finished_s: float
    tokens: list[SampledToken] = []
    error: str | None = None

    @property
    def duration_s(self) -> float:
        """Seconds the device spent on the step."""
        return self.finished_s - self.started_s


class Executor(Protocol):
    """Something that runs the steps of one domain: a torch model, a simulated device, a remote worker."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step and return its result."""
        ...
