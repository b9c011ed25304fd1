"""OpenAI-shaped errors: `{"error": {"message", "type", "param", "code"}}`, whatever went wrong and wherever."""

from __future__ import annotations

import logging
import math
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from superinfer.executor.messages import Rejected

logger = logging.getLogger(__name__)

SHOWN_VALUE_CHARACTERS = 80


class APIError(Exception):
    """An error that reaches the client as `status` and an OpenAI-shaped body."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        error_type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.error_type = error_type
        self.param = param
        self.code = code
        self.headers = headers or {}

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body, also sent as an event where a stream breaks."""
        return error_body(self.message, error_type=self.error_type, param=self.param, code=self.code)

    def response(self) -> JSONResponse:
        """The whole answer."""
        return JSONResponse(self.body, status_code=self.status, headers=self.headers)


def error_body(
    message: str, *, error_type: str = "invalid_request_error", param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """The OpenAI shape of an error."""
    return {"error": {"message": message, "type": error_type, "param": param, "code": code}}


def invalid(message: str, *, param: str | None = None, code: str | None = None) -> APIError:
    """400: the request itself is wrong."""
    return APIError(400, message, param=param, code=code)


def not_found(message: str, *, param: str | None, code: str) -> APIError:
    """404: a model or contract that is not there."""
    return APIError(404, message, param=param, code=code)


def forbidden(message: str, *, param: str | None = None, code: str) -> APIError:
    """403: the API key does not allow it."""
    return APIError(403, message, error_type="permission_error", param=param, code=code)


def unavailable(message: str, *, code: str = "engine_unavailable") -> APIError:
    """503: the engine cannot answer now."""
    return APIError(503, message, error_type="server_error", code=code, headers=retry_headers(1.0))


def retry_headers(retry_after_s: float | None) -> dict[str, str]:
    """`Retry-After` in whole seconds and the exact `retry-after-ms` that OpenAI's clients prefer."""
    if retry_after_s is None:
        return {}
    seconds = max(retry_after_s, 0.0)
    return {"retry-after": str(max(1, math.ceil(seconds))), "retry-after-ms": str(math.ceil(seconds * 1000))}


def from_rejection(rejected: Rejected) -> APIError:
    """The engine's refusal as an HTTP error; what it may accept later is 429."""
    match rejected.code:
        case "unknown_contract":
            return not_found(rejected.message, param="x-slo-contract-id", code="contract_not_found")
        case "too_long":
            return invalid(rejected.message, code="context_length_exceeded")
        case "empty_prompt":
            return invalid(rejected.message, param="prompt", code="empty_prompt")
        case "bandwidth_exceeded" | "no_domain":
            return invalid(rejected.message, param="x-slo-contract-id", code=rejected.code)
        case "engine_down":
            error = unavailable(rejected.message)
            error.headers = retry_headers(rejected.retry_after_s or 1.0)
            return error
        case _:
            return APIError(
                429,
                rejected.message,
                error_type="rate_limit_error",
                code=rejected.code,
                headers=retry_headers(rejected.retry_after_s if rejected.retry_after_s is not None else 1.0),
            )


def param_name(location: tuple[int | str, ...]) -> str | None:
    """A pydantic error's place as clients write it: ("body", "messages", 0, "role") is messages[0].role."""
    name = ""
    for part in location[1:] if location[:1] in (("body",), ("query",), ("path",), ("header",)) else location:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else str(part)
    return name or None


def from_validation(error: RequestValidationError) -> APIError:
    """The first validation error as one sentence that names the parameter and the value."""
    first = error.errors()[0]
    context = first.get("ctx") or {}
    location = tuple(first["loc"])
    match first["type"]:
        case "json_invalid":
            return invalid(f"The body is not valid JSON: {context.get('error', first['msg'])}.", code="invalid_json")
        case "unsupported_parameter" | "unknown_parameter":
            return invalid(first["msg"], param=context["param"], code=first["type"])
        case "missing" if len(location) > 1:
            param = param_name(location)
            return invalid(f"Missing required parameter: {param}.", param=param, code="missing_required_parameter")
    if location == ("body",):
        return invalid("The body must be a JSON object, sent with 'Content-Type: application/json'.")
    param = param_name(location)
    shown = repr(first.get("input"))
    if len(shown) > SHOWN_VALUE_CHARACTERS:
        shown = shown[:SHOWN_VALUE_CHARACTERS] + "…"
    return invalid(f"Invalid {param}: {first['msg']}; got {shown}.", param=param, code="invalid_value")


def add_error_handlers(app: FastAPI) -> None:
    """Give every error of `app` the OpenAI shape."""

    @app.exception_handler(APIError)
    async def on_api_error(_: Request, error: APIError) -> Response:
        return error.response()

    @app.exception_handler(RequestValidationError)
    async def on_validation_error(_: Request, error: RequestValidationError) -> Response:
        return from_validation(error).response()

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> Response:
        message = str(error.detail)
        code = None
        if error.status_code == 404:
            message, code = f"Unknown route: {request.method} {request.url.path}.", "unknown_route"
        elif error.status_code == 405:
            allowed = Headers(dict(error.headers or {})).get("allow", "")
            message = f"{request.url.path} does not take {request.method}; it takes {allowed or 'other methods'}."
            code = "method_not_allowed"
        return JSONResponse(
            error_body(message, code=code), status_code=error.status_code, headers=dict(error.headers or {})
        )

    @app.exception_handler(Exception)
    async def on_unexpected_error(_: Request, error: Exception) -> Response:
        logger.error("unexpected error while answering a request", exc_info=error)
        body = error_body("The server failed unexpectedly.", error_type="server_error", code="internal_error")
        return JSONResponse(body, status_code=500)
