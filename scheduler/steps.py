"""What crosses the border between scheduler and executor: the plan of one step and its result."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from superinfer.scheduler.request import SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]


class NewSequence(msgspec.Struct, kw_only=True):
    """A sequence the worker has not seen (or lost when its predecessor died).

    `token_ids` is the prompt followed by every output token already committed elsewhere; `prompt_length` says
    where the prompt ends, so that penalties, max_tokens and seeded draws continue where they were. `blocks` hold
    the KV of its first `computed` tokens already; only the last of them may be written to, and only behind those.
    """

    sequence_id: int
    token_ids: list[int]
    prompt_length: int
    sampling: SamplingParams
    blocks: list[int] = []
    computed: int = 0


class SequenceStep(msgspec.Struct, kw_only=True):
    """A prefill chunk: compute the KV of tokens [start, start + count) of one sequence in this step.

    `new_blocks` are appended to the sequence's block table first. If start + count reaches the last token the
    worker knows, it samples the next token.
    """

    sequence_id: int
    start: int
    count: int
    new_blocks: list[int] = []


class Rotation(msgspec.Struct, kw_only=True):
    """Copy KV blocks between device pool and host pool: pairs of (source block, destination block).

    Rotating out: device → host, and the sequence's block table becomes empty. Rotating in: host → device, and
    the destinations, in order, become the sequence's block table.
    """

    sequence_id: int
    pairs: list[tuple[int, int]]


class StepPlan(msgspec.Struct, kw_only=True):
    """One engine step of one domain. The worker applies saves, finished, rotate_out, rotate_in, copies, new sequences,
    and then computes.

    `decodes` are the sequences that compute the KV of their last token and sample the next one; the worker knows how
    far each has come. With steps planned ahead, that last token may still be being sampled by the step before: the
    worker knows it by the time it runs this one. `decode_blocks` are pairs of (sequence id, block to append to its
    block table first), for those decodes alone whose last block is full. `copies` are pairs of (device block, maybe of
    another domain or of a host pool; own device block), `saves` pairs of (own device block, own host block). Of the
    blocks in `partial_saves` only the slots from the third number to before the fourth are saved: the others are
    already, or are empty.

    Best effort beside reserved bandwidth waits for `pause_s` first, and takes at least `paced_s` after that, its memory
    traffic spread over it; where it `leaves_core`, whoever else wants its core has it first.
    """

    domain_id: str
    step_id: int
    finished: list[int] = []
    rotate_out: list[Rotation] = []
    rotate_in: list[Rotation] = []
    copies: list[tuple[int, int]] = []
    saves: list[tuple[int, int]] = []
    partial_saves: list[tuple[int, int, int, int]] = []
    new_sequences: list[NewSequence] = []
    decodes: list[int] = []
    decode_blocks: list[tuple[int, int]] = []
    sequences: list[SequenceStep] = []
    predicted_s: float = 0.0
    affinity_mask: int = 0
    leaves_core: bool = False
    paced_s: float = 0.0
    pause_s: float = 0.0

    @property
    def token_count(self) -> int:
        """Tokens whose KV this step computes."""
        return len(self.decodes) + sum(step.count for step in self.sequences)


class SampledToken(msgspec.Struct, frozen=True):
    """One token sampled in a step; `finish` is set by the worker on an end-of-sequence token or at max_tokens.

    `output_index` counts from 0, so that nobody can take a token twice.
    """

    sequence_id: int
    output_index: int
    token_id: int
    finish: FinishReason | None = None


class StepResult(msgspec.Struct, kw_only=True):
    """What a worker reports of one step. Times are on the monotonic clock; `duration_s` is the worker's own.

    The sampled tokens lie in columns: token i belongs to `sequence_ids[i]`, as its output number `output_indices[i]`.
    `ends` names the sequences that end with their token. A sequence that finished in an earlier step is skipped by the
    worker and has no entry here.
    """

    domain_id: str
    step_id: int
    started_s: float
    finished_s: float
    sequence_ids: list[int] = []
    output_indices: list[int] = []
    token_ids: list[int] = []
    ends: list[tuple[int, FinishReason]] = []
    error: str | None = None

    def add(self, token: SampledToken) -> None:
        """Report one more token."""
        self.sequence_ids.append(token.sequence_id)
        self.output_indices.append(token.output_index)
        self.token_ids.append(token.token_id)
        if token.finish is not None:
            self.ends.append((token.sequence_id, token.finish))

    @property
    def tokens(self) -> list[SampledToken]:
        """The tokens one by one."""
        ends: dict[int, FinishReason] = dict(self.ends)
        columns = zip(self.sequence_ids, self.output_indices, self.token_ids, strict=True)
        return [SampledToken(one, index, token, ends.get(one)) for one, index, token in columns]

    @property
    def duration_s(self) -> float:
        """Seconds the device spent on the step."""
        return self.finished_s - self.started_s


class Executor(Protocol):
    """Something that runs the steps of one domain: a torch model, a simulated device, a remote worker."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step and return its result."""
        ...
