"""Server-sent events, and cancelling work whose client has gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from superinfer.cli.serve.errors import APIError

T = TypeVar("T")
DONE = b"data: [DONE]\n\n"


class ClientGoneError(Exception):
    """The client closed its connection before the answer was complete."""


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Run `work`; cancel it and raise ClientGoneError when the client disconnects first."""

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working = asyncio.create_task(work)
    watching = asyncio.create_task(disconnected())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGoneError
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


def event(data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


class EventStreamResponse(Response):
    """A stream of `events` that ends with `[DONE]`.

    The status waits for the first event, and so do `late_headers`, which add what is known only then: an APIError
    before it is an ordinary error answer, one after it is sent as an event. When the client goes, `events` is closed
    at once, also while it waits for a token.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[dict[str, Any], None],
        headers: dict[str, str],
        late_headers: Callable[[], dict[str, str]] = dict,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self.events = events
        self.late_headers = late_headers
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no", **headers})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_disconnect(receive, self._send_events(send))
        except ClientGoneError:
            return
        except APIError as error:
            response = error.response()
            response.headers.update({name: value for name, value in self.headers.items() if name.startswith("x-slo")})
            await response(scope, receive, send)

    async def _send_events(self, send: Send) -> None:
        started = False
        async with aclosing(self.events) as events:
            try:
                async for data in events:
                    if not started:
                        started = True
                        self.headers.update(self.late_headers())
                        await send(
                            {
                                "type": "http.response.start",
                                "status": self.status_code,
                                "headers": self.raw_headers,
                            }
                        )
                    await send({"type": "http.response.body", "body": event(data), "more_body": True})
            except APIError as error:
                if not started:
                    raise
                await send({"type": "http.response.body", "body": event(error.body), "more_body": True})
        await send({"type": "http.response.body", "body": DONE, "more_body": False})
