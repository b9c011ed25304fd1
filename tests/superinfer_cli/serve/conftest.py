"""An engine in memory and a byte tokenizer, so that the routes can be driven without a model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from superinfer.cli.serve.app import create_app
from superinfer.cli.serve.contract_book import ContractBook
from superinfer.cli.serve.state import ServerSettings
from superinfer.contracts.contract import Bound, SLOContract, best_effort_contract
from superinfer.contracts.registry import ContractRegistry
from superinfer.executor.messages import ContractStats, DomainStats, FellBack, Finished, Rejected, Stats, Tokens
from superinfer.scheduler.outputs import StageTimes
from superinfer.scheduler.request import Request

EOS = 256


class ByteTokenizer:
    """One token for each byte of UTF-8, and one that ends the output."""

    eos_token_ids = (EOS,)
    vocab_size = 257

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: list[int]) -> str:
        return bytes(token for token in token_ids if token < EOS).decode(errors="replace")

    def apply_chat_template(self, messages: list[dict[str, str]]) -> list[int]:
        return self.encode("".join(f"<{one['role']}>{one['content']}" for one in messages))


class MemoryEngine:
    """Answers each request with `answer(request)`, token by token, up to max_tokens, as the engine does.

    Requests of a contract in `alternatives` fall back. `pause` holds every request back before its token of that index
    until `go_on` is set.
    """

    def __init__(self) -> None:
        self.answer: Callable[[Request], list[int]] = lambda request: [*b"Hello, world!", EOS]
        self.rejection: tuple[str, str, float | None] | None = None
        self.alternatives: dict[str, str] = {}
        self.failure: str | None = None
        self.pause: int | None = None
        self.go_on = asyncio.Event()
        self.requests: list[Request] = []
        self.running: dict[str, asyncio.Event] = {}
        self.aborts: list[tuple[str, str]] = []
        self.contracts: list[SLOContract] = []
        self.retired: list[str] = []
        self.contract_stats: list[ContractStats] = []
        self.domains_up = ["0"]
        self.domains: list[DomainStats] = []
        self.reserved_gb_per_s: dict[str, dict[str, float]] = {}
        self.answers_stats = True

    async def submit(self, request: Request) -> AsyncIterator[FellBack | Tokens | Finished | Rejected]:
        return self._events(request)

    async def _events(self, request: Request) -> AsyncIterator[FellBack | Tokens | Finished | Rejected]:
        self.requests.append(request)
        if self.rejection is not None:
            code, message, retry_after_s = self.rejection
            yield Rejected(request.request_id, code, message, retry_after_s)
            return
        if request.contract_id in self.alternatives:
            yield FellBack(request.request_id, self.alternatives[request.contract_id])
        aborted = self.running[request.request_id] = asyncio.Event()
        reason, made = "length", 0
        try:
            for index, token in enumerate(self.answer(request)):
                if index == self.pause:
                    waits = [asyncio.create_task(event.wait()) for event in (aborted, self.go_on)]
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                    for wait in waits:
                        wait.cancel()
                await asyncio.sleep(0)
                if aborted.is_set():
                    reason = "abort"
                    break
                if self.failure is not None and index == 3:
                    reason = "error"
                    break
                if index == request.sampling.max_tokens:
                    break
                yield Tokens(request.request_id, index, [token], time.monotonic())
                made += 1
                if token == EOS and not request.sampling.ignore_eos:
                    reason = "stop"
                    break
            yield Finished(
                request_id=request.request_id,
                reason=reason,
                time_s=time.monotonic(),
                stages=StageTimes(),
                output_tokens=made,
                error=self.failure,
            )
        finally:
            self.running.pop(request.request_id, None)

    async def abort(self, request_id: str, reason: str = "abort") -> None:
        self.aborts.append((request_id, reason))
        if request_id in self.running:
            self.running[request_id].set()

    async def register_contract(self, contract: SLOContract) -> None:
        self.contracts.append(contract)

    async def retire_contract(self, service_id: str) -> None:
        self.retired.append(service_id)

    async def stats(self) -> Stats:
        if not self.answers_stats:
            await asyncio.Event().wait()
        return Stats(
            time_s=time.monotonic(),
            waiting=0,
            running=len(self.running),
            rotated=0,
            steps=0,
            output_tokens=0,
            kv_blocks_total=8,
            kv_blocks_free=8,
            contracts=self.contract_stats,
            domains_up=self.domains_up,
            domains=self.domains,
            reserved_gb_per_s=self.reserved_gb_per_s,
        )


TRIAGE = SLOContract(
    service_id="triage",
    latency=(Bound(0.99, 150.0),),
    availability=0.999,
    sub_slos={"alarm": SLOContract(service_id="alarm", latency=(Bound(0.99, 50.0),))},
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def engine() -> MemoryEngine:
    return MemoryEngine()


@pytest.fixture
def make_app(engine):
    def make(book=None, **settings):
        if book is None:
            registry = ContractRegistry()
            registry.register([best_effort_contract(), TRIAGE])
            book = ContractBook(registry)
        chosen = ServerSettings(**{"model_name": "tiny", "max_model_len": 100, **settings})
        return create_app(engine, ByteTokenizer(), book.registry, chosen, book=book)

    return make


@pytest.fixture
def make_client(make_app):
    def make(**settings):
        transport = httpx.ASGITransport(app=make_app(**settings), raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://test")

    return make


@pytest.fixture
def client(make_client):
    return make_client()
