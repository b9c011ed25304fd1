"""The FastAPI application over an engine client."""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.responses import Response

from superinfer.cli.serve import chat, completions, contracts, health, models
from superinfer.cli.serve.api_keys import unbound
from superinfer.cli.serve.contract_book import ContractBook
from superinfer.cli.serve.errors import add_error_handlers
from superinfer.cli.serve.event_stream import ClientGoneError
from superinfer.cli.serve.middleware import APIKeyMiddleware, BodyLimitMiddleware, RequestIdMiddleware
from superinfer.cli.serve.state import Engine, ServerSettings, Service
from superinfer.contracts.registry import ContractRegistry
from superinfer.executor.runtime.device_sampler import DeviceSampler
from superinfer.executor.tokenizer import Tokenizer

CLIENT_CLOSED_REQUEST = 499


def create_app(
    engine: Engine,
    tokenizer: Tokenizer,
    registry: ContractRegistry,
    settings: ServerSettings,
    *,
    book: ContractBook | None = None,
    devices: DeviceSampler | None = None,
) -> FastAPI:
    """The whole HTTP API; `app.state.service` holds what the routes share.

    `book` is `registry`'s; without one contracts are neither saved nor checked against the device. `devices` are those
    whose figures /health tells.
    """
    app = FastAPI(title="SuperInfer", summary="OpenAI-compatible serving with SLO contracts")
    app.state.service = Service(engine, tokenizer, registry, settings, book or ContractBook(registry), devices=devices)
    add_error_handlers(app)

    @app.exception_handler(ClientGoneError)
    async def on_client_gone(_: Request, __: ClientGoneError) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    for module in (models, completions, chat, contracts, health):
        app.include_router(module.router)
    # The last one added is the outermost: every answer, refusals included, carries a request id.
    app.add_middleware(BodyLimitMiddleware, max_body_bytes=settings.max_body_bytes)
    app.add_middleware(APIKeyMiddleware, holders=[*map(unbound, settings.api_keys), *settings.key_holders])
    app.add_middleware(RequestIdMiddleware)
    return app
