"""What every route works with: the engine's client, tokenizer, contracts, settings and the requests in flight."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from fastapi import Request as HTTPRequest

from superinfer.cli.serve.api_keys import KeyHolder
from superinfer.cli.serve.contract_book import ContractBook
from superinfer.cli.serve.errors import unavailable
from superinfer.cli.serve.header_contracts import KnownContracts
from superinfer.contracts.contract import SLOContract
from superinfer.contracts.errors import EngineError
from superinfer.contracts.registry import ContractRegistry
from superinfer.executor.messages import FellBack, Finished, Rejected, Stats, Tokens
from superinfer.executor.runtime.device_sampler import DeviceSampler
from superinfer.executor.tokenizer import Tokenizer
from superinfer.scheduler.request import Request
from superinfer.scheduler.steps import FinishReason

MAX_BODY_BYTES = 4 * 1024 * 1024
ENGINE_ANSWER_S = 2.0


class Engine(Protocol):
    """The part of `superinfer.executor.client.EngineClient` that the routes use."""

    async def submit(self, request: Request) -> AsyncIterator[FellBack | Tokens | Finished | Rejected]:
        """Send a request; the iterator tells what becomes of it, Finished or Rejected last."""
        ...

    async def abort(self, request_id: str, reason: FinishReason = "abort") -> None:
        """End a request; unknown ids are ignored."""
        ...

    async def register_contract(self, contract: SLOContract) -> None:
        """Let requests use a contract from now on."""
        ...

    async def retire_contract(self, service_id: str) -> None:
        """Refuse new requests of a contract from now on."""
        ...

    async def stats(self) -> Stats:
        """A snapshot of the engine."""
        ...


@dataclass(frozen=True)
class ServerSettings:
    """What the command line decided; `created_s` is the Unix time that /v1/models reports.

    `api_keys` may use every contract, `key_holders` those that each says.
    """

    model_name: str
    max_model_len: int
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    key_holders: tuple[KeyHolder, ...] = ()
    max_body_bytes: int = MAX_BODY_BYTES
    created_s: int = field(default_factory=lambda: int(time.time()))


class InFlight:
    """The engine requests that HTTP requests wait for, so that a shutdown can drain and then end them."""

    def __init__(self) -> None:
        self.draining = False
        self._request_ids: set[str] = set()

    def add(self, request_id: str) -> None:
        """Note a request before it is sent to the engine; 503 once the server drains."""
        if self.draining:
            raise unavailable("The server is shutting down.", code="shutting_down")
        self._request_ids.add(request_id)

    def discard(self, request_id: str) -> None:
        """The request has ended."""
        self._request_ids.discard(request_id)

    def __len__(self) -> int:
        return len(self._request_ids)

    async def abort_all(self, engine: Engine) -> int:
        """Abort whatever is still in flight and return how many that were."""
        request_ids = list(self._request_ids)
        for request_id in request_ids:
            await engine.abort(request_id, "abort")
        return len(request_ids)


@dataclass
class Service:
    """Everything the routes share. `contracts_lock` keeps a change of contracts whole; `book` makes it.

    `devices` knows how busy this machine's devices are.
    """

    engine: Engine
    tokenizer: Tokenizer
    registry: ContractRegistry
    settings: ServerSettings
    book: ContractBook
    in_flight: InFlight = field(default_factory=InFlight)
    header_contracts: KnownContracts = field(default_factory=KnownContracts)
    contracts_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    devices: DeviceSampler | None = None


def get_service(request: HTTPRequest) -> Service:
    """FastAPI dependency: the app's Service."""
    service: Service = request.app.state.service
    return service


def get_key_holder(request: HTTPRequest) -> KeyHolder | None:
    """FastAPI dependency: whose API key the request came with; None on a server that is open to all."""
    holder: KeyHolder | None = getattr(request.state, "key_holder", None)
    return holder


async def engine_stats(service: Service) -> Stats:
    """A snapshot of the engine; 503 where it is down or silent."""
    try:
        return await asyncio.wait_for(service.engine.stats(), ENGINE_ANSWER_S)
    except TimeoutError as error:
        raise unavailable(f"The engine does not answer within {ENGINE_ANSWER_S:g} s.") from error
    except EngineError as error:
        raise unavailable(f"The engine is down: {error}.") from error
