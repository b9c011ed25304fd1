"""What the scheduler tells of its requests: tokens as they are committed, and how each request ended."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from superinfer.scheduler.steps import FinishReason


class StageTimes(msgspec.Struct, kw_only=True):
    """Where a request's time went, in seconds; the sum is its end-to-end time in the engine."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    rotated_s: float = 0.0
    migration_s: float = 0.0


class TokenOutput(msgspec.Struct):
    """One committed output token; each (request_id, output_index) is produced once."""

    request_id: str
    output_index: int
    token_id: int


class TokensOutput(msgspec.Struct):
    """The tokens committed of one step, in columns: token i is output number `output_indices[i]` of `request_ids[i]`.

    The lists may be shared with other outputs; they are not to be written to.
    """

    request_ids: list[str]
    output_indices: list[int]
    token_ids: list[int]

    def each(self) -> Iterator[TokenOutput]:
        """The tokens one by one."""
        return map(TokenOutput, self.request_ids, self.output_indices, self.token_ids)


class FinishOutput(msgspec.Struct, kw_only=True):
    """The end of a request; it follows the request's last token. `met` is None for a best-effort contract. Tokens were
    committed from `first_token_s` to `last_token_s`, `longest_gap_s` apart at most; NaN and 0 where there were none.
    `cached_tokens` of its prompt were not computed for it: their KV was there from earlier requests.
    """

    request_id: str
    contract_id: str
    reason: FinishReason
    stages: StageTimes
    output_tokens: int
    domain_ids: list[str]
    met: bool | None
    error: str | None = None
    first_token_s: float = math.nan
    last_token_s: float = math.nan
    longest_gap_s: float = 0.0
    cached_tokens: int = 0


Output = TokensOutput | FinishOutput


class Refusal(msgspec.Struct, kw_only=True):
    """Why a request was not admitted: "unknown_contract", "too_long", "empty_prompt", "duplicate_id",
    "bandwidth_exceeded", "no_domain", "engine_down", and where it may be later, "overloaded", "queue_full".
    """

    code: str
    message: str
    retry_after_s: float | None = None
