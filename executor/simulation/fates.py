"""What became of every simulated request, in columns: a run may have a million of them."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from superinfer.scheduler.outputs import FinishOutput, StageTimes
from superinfer.scheduler.request import Request
from superinfer.scheduler.sequence import SequenceState
from superinfer.scheduler.steps import FinishReason

STAGES = ("queue_s", "prefill_s", "decode_s", "rotated_s", "migration_s")


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """One request's fate; times in virtual seconds since the start, NaN where it did not come to that.

    `reason` is None and `refusal` set where it was refused; both are None where it never ended. `met` is None for a
    best-effort contract and for a request that did not complete.
    """

    request_id: str
    contract_id: str
    arrival_s: float
    prompt_tokens: int
    max_tokens: int
    output_tokens: int
    first_token_s: float
    last_token_s: float
    longest_gap_s: float
    finished_s: float
    reason: FinishReason | None
    met: bool | None
    stages: StageTimes
    domain_ids: tuple[str, ...]
    refusal: str | None
    error: str | None


class Fates:
    """Columns that grow by one row for each request, in order of arrival."""

    def __init__(self) -> None:
        self.request_ids: list[str] = []
        self.contract_ids: list[str] = []
        self.arrival_s = array("d")
        self.prompt_tokens = array("l")
        self.max_tokens = array("l")
        self.output_tokens = array("l")
        self.first_token_s = array("d")
        self.last_token_s = array("d")
        self.longest_gap_s = array("d")
        self.finished_s = array("d")
        self.stages = tuple(array("d") for _ in STAGES)
        self.reasons: list[FinishReason | None] = []
        self.met: list[bool | None] = []
        self.domain_ids: list[tuple[str, ...]] = []
        self.refusals: dict[int, str] = {}
        self.errors: dict[int, str] = {}
        self._rows: dict[str, int] = {}
        self._shared_domains: dict[tuple[str, ...], tuple[str, ...]] = {(): ()}

    def __len__(self) -> int:
        return len(self.request_ids)

    def __getitem__(self, row: int) -> SimulatedRequest:
        return SimulatedRequest(
            request_id=self.request_ids[row],
            contract_id=self.contract_ids[row],
            arrival_s=self.arrival_s[row],
            prompt_tokens=self.prompt_tokens[row],
            max_tokens=self.max_tokens[row],
            output_tokens=self.output_tokens[row],
            first_token_s=self.first_token_s[row],
            last_token_s=self.last_token_s[row],
            longest_gap_s=self.longest_gap_s[row],
            finished_s=self.finished_s[row],
            reason=self.reasons[row],
            met=self.met[row],
            stages=StageTimes(**{name: column[row] for name, column in zip(STAGES, self.stages, strict=True)}),
            domain_ids=self.domain_ids[row],
            refusal=self.refusals.get(row),
            error=self.errors.get(row),
        )

    def __iter__(self) -> Iterator[SimulatedRequest]:
        return (self[row] for row in range(len(self)))

    @property
    def open_rows(self) -> list[int]:
        """Requests that were admitted and have not ended."""
        return list(self._rows.values())

    def arrived(self, request: Request) -> None:
        """One more request; it is open until it is refused or ends."""
        row = len(self.request_ids)
        self.request_ids.append(request.request_id)
        self.contract_ids.append(request.contract_id)
        self.arrival_s.append(request.arrival_s)
        self.prompt_tokens.append(len(request.prompt_token_ids))
        self.max_tokens.append(request.sampling.max_tokens)
        self.output_tokens.append(0)
        for column in (self.first_token_s, self.last_token_s, self.finished_s):
            column.append(math.nan)
        self.longest_gap_s.append(0.0)
        for column in self.stages:
            column.append(0.0)
        self.reasons.append(None)
        self.met.append(None)
        self.domain_ids.append(())
        self._rows[request.request_id] = row

    def arrived_together(self, requests: Sequence[Request]) -> None:
        """As `arrived` of each in turn."""
        count, row = len(requests), len(self.request_ids)
        ids = [request.request_id for request in requests]
        self.request_ids += ids
        self.contract_ids += [request.contract_id for request in requests]
        self.arrival_s.extend([request.arrival_s for request in requests])
        self.prompt_tokens.extend([len(request.prompt_token_ids) for request in requests])
        self.max_tokens.extend([request.sampling.max_tokens for request in requests])
        self.output_tokens.extend([0] * count)
        for column in (self.first_token_s, self.last_token_s, self.finished_s):
            column.extend([math.nan] * count)
        for column in (self.longest_gap_s, *self.stages):
            column.extend([0.0] * count)
        self.reasons += [None] * count
        self.met += [None] * count
        self.domain_ids += [()] * count
        self._rows.update(zip(ids, range(row, row + count), strict=True))

    def is_open(self, request_id: str) -> bool:
        """Whether a request of this id has arrived and not ended."""
        return request_id in self._rows

    def refused(self, request_id: str, refusal: str) -> None:
        """The request was not admitted."""
        self.refusals[self._rows.pop(request_id)] = refusal

    def finished(self, finish: FinishOutput, now: float) -> None:
        """The request ended."""
        row = self._rows.pop(finish.request_id)
        self.finished_s[row] = now
        self.reasons[row] = finish.reason
        self.met[row] = finish.met
        self.output_tokens[row] = finish.output_tokens
        self.first_token_s[row], self.last_token_s[row] = finish.first_token_s, finish.last_token_s
        self.longest_gap_s[row] = finish.longest_gap_s
        domains = tuple(finish.domain_ids)
        self.domain_ids[row] = self._shared_domains.setdefault(domains, domains)
        for name, column in zip(STAGES, self.stages, strict=True):
            column[row] = getattr(finish.stages, name)
        if finish.error is not None:
            self.errors[row] = finish.error

    def completed(
        self,
        rows: list[int],
        domain_ids: list[str],
        met: list[bool | None],
        output_tokens: list[int],
        times_s: Mapping[str, list[float]],
    ) -> None:
        """These requests ended with all their tokens, each on the one domain that it ran on. `times_s` has a column for
        each attribute of this object of that name, and each stage's.
        """
        columns = {name: getattr(self, name) for name in times_s if name not in STAGES}
        columns |= {name: column for name, column in zip(STAGES, self.stages, strict=True) if name in times_s}
        for name, column in columns.items():
            for row, time_s in zip(rows, times_s[name], strict=True):
                column[row] = time_s
        for row, domain_id, its_met, tokens in zip(rows, domain_ids, met, output_tokens, strict=True):
            del self._rows[self.request_ids[row]]
            self.reasons[row], self.met[row], self.output_tokens[row] = "length", its_met, tokens
            self.domain_ids[row] = self._shared_domains.setdefault((domain_id,), (domain_id,))

    def left_open(self, sequences: Iterable[SequenceState]) -> None:
        """How far those came that have not ended when the run does."""
        for sequence in sequences:
            row = self._rows[sequence.request.request_id]
            self.output_tokens[row] = sequence.committed
            self.first_token_s[row] = math.nan if sequence.first_token_s is None else sequence.first_token_s
            self.last_token_s[row], self.longest_gap_s[row] = sequence.last_token_s, sequence.longest_gap_s
