"""Messages between a client (gateway, bench) and the engine process: msgpack over ZeroMQ IPC.

Each direction is one tagged union; unknown tags are an error, nothing is pickled.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from superinfer.contracts.contract import SLOContract
from superinfer.scheduler.budgets import BudgetState
from superinfer.scheduler.outputs import StageTimes
from superinfer.scheduler.request import Request
from superinfer.scheduler.steps import FinishReason


class Hello(msgspec.Struct, tag=True):
    """The first message of a client: answered with EngineReady, at once or when all workers are ready."""


class Submit(msgspec.Struct, tag=True):
    """Take this request."""

    request: Request


class Abort(msgspec.Struct, tag=True):
    """Stop this request and free what it holds; unknown ids are ignored.

    A stop string found by the client is an abort as well: `reason` is what Finished will say.
    """

    request_id: str
    reason: FinishReason = "abort"


class RegisterContract(msgspec.Struct, tag=True):
    """Requests may use this contract from now on; a newer version replaces an older one."""

    contract: SLOContract


class RetireContract(msgspec.Struct, tag=True):
    """Refuse new requests of this service and its sub-tasks; those in flight keep the contract they have."""

    service_id: str


class GetStats(msgspec.Struct, tag=True):
    """Answer with Stats."""


class Ping(msgspec.Struct, tag=True):
    """Answer with Pong: a client asks when it has heard nothing for a while."""


class Shutdown(msgspec.Struct, tag=True):
    """End the workers and the engine."""


ClientMessage = Hello | Submit | Abort | RegisterContract | RetireContract | GetStats | Ping | Shutdown


class DomainInfo(msgspec.Struct):
    """One fault domain and the worker process that is it. `kind` is what people call its kind, by default its
    precision.
    """

    domain_id: str
    worker_pid: int
    kv_blocks: int
    block_size: int
    kind: str = ""
    precision: str = ""


class EngineReady(msgspec.Struct, tag=True):
    """All workers have loaded the model; requests are welcome."""

    domains: list[DomainInfo]
    max_model_len: int


class EngineFailed(msgspec.Struct, tag=True):
    """The engine cannot start or go on: one clear line, and its class in `contracts.errors`."""

    message: str
    kind: str = "EngineError"


class Pong(msgspec.Struct, tag=True):
    """The engine's loop goes round."""


class FellBack(msgspec.Struct, tag=True):
    """The request was admitted under an alternative service of its contract; comes before its first Tokens."""

    request_id: str
    contract_id: str


class Tokens(msgspec.Struct, tag=True):
    """New output tokens of a request, the first of them at `first_index`; each index is sent once."""

    request_id: str
    first_index: int
    token_ids: list[int]
    time_s: float


class Finished(msgspec.Struct, tag=True):
    """The last message of a request. `error` says why where `reason` is "error"."""

    request_id: str
    reason: FinishReason
    time_s: float
    stages: StageTimes
    output_tokens: int
    domain_ids: list[str] = []
    error: str | None = None
    cached_tokens: int = 0


class Rejected(msgspec.Struct, tag=True):
    """The request was not admitted; `code` is that of `scheduler.outputs.Refusal`."""

    request_id: str
    code: str
    message: str
    retry_after_s: float | None = None


class DomainEvent(msgspec.Struct, tag=True):
    """A domain died or came (back) up."""

    domain_id: str
    state: Literal["down", "up"]
    time_s: float
    worker_pid: int
    moved_requests: int = 0
    detail: str = ""


class CoresSpared(msgspec.Struct, tag=True):
    """Clients on this machine are to keep off these cores, whose workers hold bandwidth, and off no others any more."""

    cores: list[int]


class Resumed(msgspec.Struct, tag=True):
    """The first step that holds requests of a dead domain has run: it began at `started_s`, `noticed_s` is when the
    engine noticed the death. `recomputed_tokens` are those in it whose KV had been lost.
    """

    dead_domain_id: str
    domain_id: str
    noticed_s: float
    started_s: float
    requests: int
    recomputed_tokens: int


class ContractStats(msgspec.Struct, kw_only=True):
    """Live fulfilment of one contract since the engine started; the fields of `scheduler.stats.ContractCounts`."""

    service_id: str
    finished: int = 0
    met: int = 0
    running: int = 0
    waiting: int = 0
    refused: int = 0
    fell_back: int = 0
    budgets: list[BudgetState] = []


class DomainStats(msgspec.Struct):
    """One domain now; `kind` and `precision` as of DomainInfo."""

    domain_id: str
    kind: str
    precision: str
    is_up: bool
    running: int
    rotated: int
    kv_blocks_total: int
    kv_blocks_free: int


class Stats(msgspec.Struct, tag=True, kw_only=True):
    """A snapshot of the engine; the fields of `scheduler.stats.SchedulerStats`, and each domain that has been up."""

    time_s: float
    waiting: int
    running: int
    rotated: int
    steps: int
    output_tokens: int
    kv_blocks_total: int
    kv_blocks_free: int
    contracts: list[ContractStats]
    domains_up: list[str]
    reserved_gb_per_s: dict[str, dict[str, float]] = {}
    rotations: int = 0
    recomputations: int = 0
    domains: list[DomainStats] = []


EngineMessage = (
    EngineReady
    | EngineFailed
    | Pong
    | FellBack
    | Tokens
    | Finished
    | Rejected
    | DomainEvent
    | CoresSpared
    | Resumed
    | Stats
)
