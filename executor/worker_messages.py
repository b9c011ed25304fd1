"""A worker's greeting to its engine, and how an error keeps its kind across a process border.

Afterwards only StepPlan goes one way and StepResult the other. A fork server is sent orders and reports births.
"""

from __future__ import annotations

import msgspec

from superinfer.contracts import errors


class WorkerReady(msgspec.Struct, tag=True):
    """The model is loaded and the KV cache allocated."""

    domain_id: str
    pid: int
    kv_blocks: int
    max_model_len: int


class WorkerFailed(msgspec.Struct, tag=True):
    """The worker cannot start; `kind` names a class of `contracts.errors`, `message` is one clear line."""

    kind: str
    message: str


WorkerGreeting = WorkerReady | WorkerFailed


class ForkOrder(msgspec.Struct):
    """Fork a worker that connects to `endpoint`. With it come its lifeline and a socket for `WorkerBorn`."""

    endpoint: str


class WorkerBorn(msgspec.Struct):
    """The worker's process; `pid` 0 where there is none, and then `error` says what became of it."""

    pid: int
    error: str = ""


def error_kind(error: Exception) -> str:
    """The name under which `error` crosses a process border."""
    return type(error).__name__ if isinstance(error, errors.SuperInferError) else errors.EngineError.__name__


def error_message(error: Exception) -> str:
    """`error` as one line for a person."""
    text = " ".join(str(error).split())
    if isinstance(error, errors.SuperInferError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def rebuild_error(kind: str, message: str) -> errors.SuperInferError:
    """The error that `error_kind` and `error_message` described; EngineError where the kind is unknown."""
    found = getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, errors.SuperInferError):
        return found(message)
    return errors.EngineError(message)
