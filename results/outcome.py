"""What became of one request: measured times, the bounds it was held to, and which stage ate its time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from superinfer.contracts.contract import SLOContract
from superinfer.profiler.latency_model import LatencyModel

End = Literal["completed", "rejected", "cancelled", "failed"]
Status = Literal["met", "missed", "rejected", "cancelled", "failed"]
Milestone = Literal["latency", "ttft", "tpot"]

STAGES = ("queue", "prefill", "decode", "rotated", "migration")

_STAGES_OF_MILESTONE: dict[Milestone, tuple[str, ...]] = {
    "latency": STAGES,
    "ttft": ("queue", "prefill", "rotated", "migration"),
    "tpot": ("decode", "rotated", "migration"),
}


class Measurement(msgspec.Struct, kw_only=True):
    """What a client saw of one request. Times are seconds since the run's start.

    `scheduled_s` is when open-loop load called for the request, `sent_s` when the sender got round to it.
    `longest_gap_ms` is the longest wait between two successive tokens. `stages_ms` is the engine's own
    account of where the time went, by stage name.
    """

    request_id: str
    service_id: str
    scheduled_s: float
    sent_s: float
    first_token_s: float | None
    finish_s: float | None
    prompt_tokens: int
    output_tokens: int
    end: End
    longest_gap_ms: float = 0.0
    stages_ms: dict[str, float] = {}
    domains: list[str] = []
    token_hash: str = ""
    error: str | None = None

    @property
    def e2e_ms(self) -> float | None:
        """From the scheduled send time to the end; None where the request did not complete."""
        if self.end != "completed" or self.finish_s is None:
            return None
        return (self.finish_s - self.scheduled_s) * 1e3

    @property
    def ttft_ms(self) -> float | None:
        """From the scheduled send time to the first token; None where there was none."""
        return None if self.first_token_s is None else (self.first_token_s - self.scheduled_s) * 1e3

    @property
    def tpot_ms(self) -> float | None:
        """Mean time per output token after the first; None for fewer than two tokens."""
        if self.end != "completed" or self.first_token_s is None or self.finish_s is None:
            return None
        if self.output_tokens < 2:
            return None
        return (self.finish_s - self.first_token_s) * 1e3 / (self.output_tokens - 1)


class Outcome(msgspec.Struct, kw_only=True):
    """A measurement judged against its contract: one line of per_request.jsonl.

    `status` is "met" where the request completed within every bounded milestone, hence for every completed
    best-effort request. `missed_stage` is set for "missed" alone: the stage with the largest excess over the
    unloaded prediction.
    """

    request_id: str
    service_id: str
    status: Status
    scheduled_s: float
    sent_s: float
    first_token_s: float | None
    finish_s: float | None
    prompt_tokens: int
    output_tokens: int
    e2e_ms: float | None
    ttft_ms: float | None
    tpot_ms: float | None
    deadline_ms: float | None
    ttft_deadline_ms: float | None
    tpot_deadline_ms: float | None
    violated: list[Milestone]
    missed_stage: str | None
    stages_ms: dict[str, float]
    longest_gap_ms: float
    domains: list[str]
    token_hash: str
    error: str | None
    best_effort: bool


def hash_tokens(token_ids: Iterable[int]) -> str:
    """A short digest of a token sequence, equal exactly when (but for chance 2⁻⁶⁴) the tokens are."""
    text = ",".join(map(str, token_ids))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def unloaded_stages_ms(model: LatencyModel, prompt_tokens: int, output_tokens: int) -> dict[str, float]:
    """Time in each stage of a request that has the device to itself, in milliseconds."""
    prefill_s = model.prefill_s(0, prompt_tokens)
    decode_s = model.decodes_s(prompt_tokens + 1, output_tokens - 1)
    return {"prefill": prefill_s * 1e3, "decode": decode_s * 1e3}


def violated_milestones(
    contract: SLOContract, *, e2e_ms: float | None, ttft_ms: float | None, tpot_ms: float | None
) -> list[Milestone]:
    """The bounded milestones that a completed request did not hold; a missing TPOT (one token) holds."""
    checks: list[tuple[Milestone, float | None, float | None]] = [
        ("latency", e2e_ms, contract.deadline_ms),
        ("ttft", ttft_ms, contract.ttft_deadline_ms),
        ("tpot", tpot_ms, contract.tpot_deadline_ms),
    ]
    return [name for name, value, bound in checks if bound is not None and value is not None and value > bound]


def blame_stage(stages_ms: Mapping[str, float], unloaded_ms: Mapping[str, float], violated: Iterable[Milestone]) -> str:
    """The stage that exceeds its unloaded prediction most, among those that the missed bounds cover."""
    covered = {stage for milestone in violated for stage in _STAGES_OF_MILESTONE[milestone]}
    candidates = [stage for stage in STAGES if stage in covered]
    return max(candidates, key=lambda stage: stages_ms.get(stage, 0.0) - unloaded_ms.get(stage, 0.0))


def judge(measurement: Measurement, contract: SLOContract, unloaded_ms: Mapping[str, float] | None = None) -> Outcome:
    """Hold one measurement against its contract; without `unloaded_ms` stages compare by plain times."""
    m = measurement
    violated: list[Milestone] = []
    status: Status
    if m.end == "completed":
        violated = violated_milestones(contract, e2e_ms=m.e2e_ms, ttft_ms=m.ttft_ms, tpot_ms=m.tpot_ms)
        status = "missed" if violated else "met"
    else:
        status = m.end
    return Outcome(
        request_id=m.request_id,
        service_id=m.service_id,
        status=status,
        scheduled_s=m.scheduled_s,
        sent_s=m.sent_s,
        first_token_s=m.first_token_s,
        finish_s=m.finish_s,
        prompt_tokens=m.prompt_tokens,
        output_tokens=m.output_tokens,
        e2e_ms=m.e2e_ms,
        ttft_ms=m.ttft_ms,
        tpot_ms=m.tpot_ms,
        deadline_ms=contract.deadline_ms,
        ttft_deadline_ms=contract.ttft_deadline_ms,
        tpot_deadline_ms=contract.tpot_deadline_ms,
        violated=violated,
        missed_stage=blame_stage(m.stages_ms, unloaded_ms or {}, violated) if violated else None,
        stages_ms=m.stages_ms,
        longest_gap_ms=m.longest_gap_ms,
        domains=m.domains,
        token_hash=m.token_hash,
        error=m.error,
        best_effort=contract.is_best_effort,
    )
