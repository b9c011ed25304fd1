"""What surrounds every route: the request id, the API key, the limit on body size. Plain ASGI, so that streams
and the client's disconnect pass through unchanged."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from superinfer.cli.serve.api_keys import KeyHolder, find_holder
from superinfer.cli.serve.errors import APIError

SANE_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
OPEN_PATHS = frozenset({"/health"})


class RequestIdMiddleware:
    """Answers carry `x-request-id`: the client's where it is sane, else a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if SANE_REQUEST_ID.fullmatch(given) else f"req-{uuid.uuid4().hex}"

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        await self.app(scope, receive, send_with_id)


class APIKeyMiddleware:
    """401 without one of the keys, except on OPEN_PATHS; no keys leave the server open.

    Whose key it is stands in the request's state, for `superinfer.cli.serve.state.get_key_holder`.
    """

    def __init__(self, app: ASGIApp, holders: Sequence[KeyHolder]) -> None:
        self.app = app
        self._holders = holders

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._holders or scope["path"] in OPEN_PATHS:
            await self.app(scope, receive, send)
            return
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        holder = find_holder(self._holders, key.strip()) if scheme.lower() == "bearer" else None
        if holder is not None:
            scope.setdefault("state", {})["key_holder"] = holder
            await self.app(scope, receive, send)
            return
        error = APIError(
            401,
            "Missing or wrong API key: send 'Authorization: Bearer KEY' with a key the server was started with.",
            error_type="authentication_error",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )
        await error.response()(scope, receive, send)


class BodyLimitMiddleware:
    """Reads the body before the route does and answers 413 past the limit, whether or not its length was declared."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self.app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self.app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "0")
        if declared.isdigit() and int(declared) > self._max_body_bytes:
            await self._refuse(scope, receive, send)
            return
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if len(body) > self._max_body_bytes:
                await self._refuse(scope, receive, send)
                return
            if not message.get("more_body", False):
                break
        replayed = False

        async def receive_replayed() -> Message:
            nonlocal replayed
            if replayed:
                return await receive()
            replayed = True
            return {"type": "http.request", "body": bytes(body), "more_body": False}

        await self.app(scope, receive_replayed, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        limit_mib = self._max_body_bytes / 1024**2
        error = APIError(
            413,
            f"The body is larger than the {limit_mib:g} MiB that this server takes.",
            code="body_too_large",
            headers={"connection": "close"},
        )
        await error.response()(scope, receive, send)
