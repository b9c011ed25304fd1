"""Open-loop load: every request is sent at its scheduled time, whatever has become of the ones before."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Protocol

from superinfer.cli.bench.workload import PlannedRequest
from superinfer.contracts.errors import EngineError
from superinfer.executor.messages import FellBack, Finished, Rejected, Tokens
from superinfer.results.outcome import End, Measurement, hash_tokens
from superinfer.scheduler.request import Request

LEAD_S = 0.1
"""Time between the start of the generator and the first scheduled send."""


class Client(Protocol):
    """What the generator needs of an engine's client."""

    @property
    def down(self) -> EngineError | None:
        """Why the engine serves nobody, if so."""
        ...

    async def submit(self, request: Request) -> AsyncIterator[FellBack | Tokens | Finished | Rejected]:
        """Send a request; the iterator gives its messages until the last. Leaving it early aborts the request."""
        ...


@dataclass(slots=True)
class Record:
    """What the client saw of one request; times are on the monotonic clock.

    `duplicated` counts tokens that came more than once, `skipped` those that never came although a later one did.
    """

    planned: PlannedRequest
    scheduled_s: float
    sent_s: float
    token_ids: list[int] = field(default_factory=list)
    token_times_s: list[float] = field(default_factory=list)
    duplicated: int = 0
    skipped: int = 0
    finish_s: float | None = None
    last: Finished | Rejected | None = None
    cancelled: bool = False
    error: str | None = None

    @property
    def end(self) -> End:
        """How the request ended. Too few tokens, or some twice, is a failure whatever the engine says."""
        if isinstance(self.last, Rejected):
            return "rejected"
        if self.cancelled or (self.last is not None and self.last.reason == "abort"):
            return "cancelled"
        whole = len(self.token_ids) == self.planned.output_tokens and not (self.duplicated or self.skipped)
        return "completed" if self.last is not None and self.last.reason != "error" and whole else "failed"

    @property
    def longest_gap_s(self) -> float:
        """The longest wait between two successive arrivals of tokens, 0 for fewer than two."""
        times = self.token_times_s
        return max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)

    def alive_at(self, moment_s: float) -> bool:
        """True where the request had been sent and had not ended by then."""
        return self.sent_s <= moment_s and (self.finish_s is None or self.finish_s > moment_s)

    def take(self, tokens: Tokens, now_s: float) -> None:
        """Append newly arrived tokens, watching that each index comes once and in order."""
        expected = len(self.token_ids)
        if tokens.first_index > expected:
            self.skipped += tokens.first_index - expected
        repeated = max(0, expected - tokens.first_index)
        self.duplicated += min(repeated, len(tokens.token_ids))
        fresh = tokens.token_ids[repeated:]
        self.token_ids.extend(fresh)
        if fresh:
            self.token_times_s.append(now_s)

    def measurement(self, start_s: float) -> Measurement:
        """The record as results judge it, with times relative to the start of the run."""
        finished = self.last if isinstance(self.last, Finished) else None
        return Measurement(
            request_id=self.planned.request_id,
            service_id=self.planned.service_id,
            scheduled_s=self.scheduled_s - start_s,
            sent_s=self.sent_s - start_s,
            first_token_s=self.token_times_s[0] - start_s if self.token_times_s else None,
            finish_s=None if self.finish_s is None else self.finish_s - start_s,
            prompt_tokens=len(self.planned.prompt_token_ids),
            output_tokens=len(self.token_ids),
            end=self.end,
            longest_gap_ms=self.longest_gap_s * 1e3,
            stages_ms=_stages_ms(finished),
            domains=list(finished.domain_ids) if finished else [],
            token_hash=hash_tokens(self.token_ids),
            error=self._error_text(),
        )

    def _error_text(self) -> str | None:
        if self.error is not None or self.last is None:
            return self.error
        if isinstance(self.last, Rejected):
            return f"{self.last.code}: {self.last.message}"
        if self.last.error is None and self.end == "failed":
            return (
                f"{len(self.token_ids)} of {self.planned.output_tokens} tokens came, "
                f"{self.duplicated} twice, {self.skipped} were skipped"
            )
        return self.last.error


@dataclass(slots=True)
class LoadResult:
    """All records in sending order; `start_s` is the scheduled time zero on the monotonic clock."""

    start_s: float
    records: list[Record] = field(default_factory=list)
    interrupted: bool = False
    engine_error: str | None = None

    @property
    def duration_s(self) -> float:
        """From time zero to the last end."""
        return max((r.finish_s - self.start_s for r in self.records if r.finish_s is not None), default=0.0)


class LoadGenerator:
    """Sends one workload. `stop` ends the run early: nothing more is sent and what is open is aborted.

    `on_sent` and `on_end` are called for progress. An engine that is not `engine_alive`, or that sends nothing for
    `silence_s` while requests are open, ends the run as well.
    """

    def __init__(
        self,
        client: Client,
        workload: list[PlannedRequest],
        *,
        stop: asyncio.Event,
        on_sent: Callable[[Record], None] = lambda _: None,
        on_end: Callable[[Record], None] = lambda _: None,
        engine_alive: Callable[[], bool] = lambda: True,
        silence_s: float = 180.0,
    ) -> None:
        self._client = client
        self._workload = workload
        self._stop = stop
        self._on_sent = on_sent
        self._on_end = on_end
        self._engine_alive = engine_alive
        self._silence_s = silence_s
        self._last_sign_s = 0.0
        self.result = LoadResult(start_s=time.monotonic() + LEAD_S)

    async def run(self) -> LoadResult:
        """Send everything, wait for every end, return what was seen."""
        result = self.result
        tasks: set[asyncio.Task[None]] = set()
        for planned in self._workload:
            scheduled_s = result.start_s + planned.offset_s
            if await self._stopped_before(scheduled_s):
                break
            if not self._engine_alive():
                result.engine_error = "the engine process ended under load"
            if result.engine_error is not None:
                break
            record = Record(planned, scheduled_s, sent_s=time.monotonic())
            result.records.append(record)
            self._last_sign_s = record.sent_s
            self._on_sent(record)
            tasks.add(asyncio.create_task(self._follow(record)))
        await self._drain(tasks)
        result.interrupted = self._stop.is_set()
        return result

    async def _stopped_before(self, moment_s: float) -> bool:
        """Wait until the moment; True as soon as the run is to stop."""
        delay_s = moment_s - time.monotonic()
        if delay_s > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), delay_s)
        return self._stop.is_set()

    async def _drain(self, tasks: set[asyncio.Task[None]]) -> None:
        """Wait for the open requests, until they end, the run is stopped, or the engine has gone silent."""
        stopped = asyncio.create_task(self._stop.wait())
        open_tasks = {task for task in tasks if not task.done()}
        while open_tasks and not self._stop.is_set():
            quiet_s = time.monotonic() - self._last_sign_s
            if quiet_s > self._silence_s:
                self.result.engine_error = (
                    f"the engine sent nothing for {quiet_s:.0f} s with {len(open_tasks)} requests open"
                )
                break
            await asyncio.wait({*open_tasks, stopped}, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
            open_tasks = {task for task in open_tasks if not task.done()}
        stopped.cancel()
        for task in open_tasks:
            task.cancel()
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(error, Exception):
                raise error
        for record in self.result.records:
            if record.finish_s is None:  # cancelled before its task had begun
                record.cancelled = True
                record.finish_s = time.monotonic()

    async def _follow(self, record: Record) -> None:
        """Submit one request and note its messages as they arrive."""
        planned = record.planned
        request = Request(
            request_id=planned.request_id,
            contract_id=planned.service_id,
            prompt_token_ids=planned.prompt_token_ids,
            sampling=planned.sampling,
            arrival_s=record.scheduled_s,
        )
        try:
            async for message in await self._client.submit(request):
                now_s = self._last_sign_s = time.monotonic()
                if isinstance(message, Tokens):
                    record.take(message, now_s)
                elif not isinstance(message, FellBack):
                    record.last = message
                    record.finish_s = now_s
            if self._client.down is not None:
                self.result.engine_error = str(self._client.down)
        except asyncio.CancelledError:
            record.cancelled = True
            record.finish_s = time.monotonic()
        except EngineError as error:
            record.error = str(error)
            record.finish_s = time.monotonic()
            self.result.engine_error = str(error)
        self._on_end(record)


def _stages_ms(finished: Finished | None) -> dict[str, float]:
    if finished is None:
        return {}
    stages = finished.stages
    return {
        "queue": stages.queue_s * 1e3,
        "prefill": stages.prefill_s * 1e3,
        "decode": stages.decode_s * 1e3,
        "rotated": stages.rotated_s * 1e3,
        "migration": stages.migration_s * 1e3,
    }
