"""From a request to the engine to pieces of text: detokenizing, stop strings, and what happens when it ends early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from superinfer.cli.serve.errors import APIError, from_rejection, unavailable
from superinfer.cli.serve.state import Engine, InFlight
from superinfer.executor.messages import FellBack, Finished, Tokens
from superinfer.executor.tokenizer import IncrementalDetokenizer
from superinfer.scheduler.request import Request


@dataclass(slots=True)
class Job:
    """One choice of an answer: its engine request and how its tokens become text.

    `end_ids` are the tokens that end the output and have no text of their own; `alternative_id` is the contract under
    which the request was admitted, once that is known to be another than it named. `cached_tokens` of the prompt were
    not computed for this request, which is known once the engine has ended it.
    """

    index: int
    request: Request
    detokenizer: IncrementalDetokenizer
    end_ids: frozenset[int]
    alternative_id: str | None = None
    cached_tokens: int = 0


@dataclass(slots=True)
class Piece:
    """Text that choice `index` gained; `output_tokens` counts all of its tokens so far.

    `finish_reason` is set on the choice's last piece.
    """

    index: int
    text: str
    output_tokens: int
    finish_reason: Literal["stop", "length"] | None = None


async def generate(engine: Engine, in_flight: InFlight, job: Job) -> AsyncGenerator[Piece, None]:
    """Run one job. Left early, by an error or by the caller, it aborts the request so that its KV is freed.

    Raises APIError where the engine refuses the request or fails it.
    """
    request_id = job.request.request_id
    output_tokens = 0
    ended = False
    in_flight.add(request_id)
    try:
        messages = await engine.submit(job.request)
        async for message in messages:
            if isinstance(message, Tokens):
                text = ""
                for token_id in message.token_ids:
                    output_tokens += 1
                    if token_id not in job.end_ids:
                        text += job.detokenizer.push([token_id])
                    if job.detokenizer.stopped:
                        ended = True
                        await engine.abort(request_id, "stop")
                        yield Piece(job.index, text, output_tokens, "stop")
                        return
                yield Piece(job.index, text, output_tokens)
            elif isinstance(message, FellBack):
                job.alternative_id = message.contract_id
            elif isinstance(message, Finished):
                ended = True
                job.cached_tokens = message.cached_tokens
                if message.reason == "stop" or message.reason == "length":
                    rest = job.detokenizer.finish()
                    reason: Literal["stop", "length"] = "stop" if job.detokenizer.stopped else message.reason
                    yield Piece(job.index, rest, output_tokens, reason)
                    return
                raise _broken_off(message)
            else:
                ended = True
                raise from_rejection(message)
        raise unavailable("The engine ended the request without saying why.")
    finally:
        in_flight.discard(request_id)
        if not ended:
            await engine.abort(request_id, "abort")


def _broken_off(finished: Finished) -> APIError:
    if finished.reason == "abort":
        return unavailable("The request was cancelled because the server is shutting down.", code="shutting_down")
    return unavailable(finished.error or "The engine failed while the request ran.", code="engine_error")


async def generate_all(engine: Engine, in_flight: InFlight, jobs: Sequence[Job]) -> AsyncGenerator[Piece, None]:
    """Run several jobs at once; pieces come as they are made. One that fails ends them all."""
    if len(jobs) == 1:
        async with aclosing(generate(engine, in_flight, jobs[0])) as pieces:
            async for piece in pieces:
                yield piece
        return
    queue: asyncio.Queue[Piece | Exception] = asyncio.Queue()

    async def pump(job: Job) -> None:
        try:
            async with aclosing(generate(engine, in_flight, job)) as pieces:
                async for piece in pieces:
                    queue.put_nowait(piece)
        except Exception as error:
            queue.put_nowait(error)

    tasks = [asyncio.create_task(pump(job)) for job in jobs]
    try:
        unfinished = len(jobs)
        while unfinished:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            unfinished -= item.finish_reason is not None
            yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(slots=True)
class Completed:
    """A choice as a whole, for answers that are not streamed."""

    text: str
    output_tokens: int
    finish_reason: Literal["stop", "length"]


async def collect(engine: Engine, in_flight: InFlight, jobs: Sequence[Job]) -> list[Completed]:
    """Run all jobs to their end, in the order of their index."""
    texts: list[list[str]] = [[] for _ in jobs]
    done: dict[int, Completed] = {}
    async with aclosing(generate_all(engine, in_flight, jobs)) as pieces:
        async for piece in pieces:
            texts[piece.index].append(piece.text)
            if piece.finish_reason is not None:
                done[piece.index] = Completed("".join(texts[piece.index]), piece.output_tokens, piece.finish_reason)
    return [done[index] for index in range(len(jobs))]
