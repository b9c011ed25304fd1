"""Running the HTTP server over an engine, and ending it in order: stop accepting, drain, abort, leave."""

from __future__ import annotations

import asyncio
import contextlib
import logging.config
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any

import uvicorn
from fastapi import FastAPI

from superinfer.cli.serve.state import Service
from superinfer.executor.messages import DomainEvent

logger = logging.getLogger(__name__)

ABORTED_STREAMS_S = 2
"""How long streams have, once aborted, to send their last event."""

ENGINE_CHECK_S = 0.5


class Server(uvicorn.Server):
    """uvicorn without signal handling of its own: who runs it decides when it ends."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals to `run_server`."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, then tell."""
        await super().startup(sockets)
        if self.started:
            self._on_ready()


async def run_server(
    app: FastAPI,
    bound: socket.socket,
    *,
    grace_s: float,
    log_level: str,
    on_ready: Callable[[], None],
    engine_is_alive: Callable[[], bool],
    domain_events: Sequence[DomainEvent] = (),
) -> bool:
    """Serve until SIGINT or SIGTERM and return True, or until the engine process ends and return False.

    After the first signal, requests in flight have `grace_s` seconds to finish before they are aborted; a second
    signal ends them at once. What is appended to `domain_events` is logged.
    """
    service: Service = app.state.service
    configure_logging(log_level)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=log_level in ("info", "debug"),
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=int(grace_s) + 1 + ABORTED_STREAMS_S,
    )
    server = Server(config, on_ready)
    stop_asked = asyncio.Event()
    stop_now = asyncio.Event()

    def on_signal() -> None:
        (stop_now if stop_asked.is_set() else stop_asked).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    watching = asyncio.create_task(_watch_engine(engine_is_alive, domain_events))
    try:
        await _first_of(serving, watching, stop_asked.wait())
        if not stop_asked.is_set():
            server.should_exit = True
            _cut_connections(server)
            await serving
            return False
        logger.info("shutting down: waiting up to %g s for %d requests", grace_s, len(service.in_flight))
        service.in_flight.draining = True
        server.should_exit = True
        await _first_of(serving, watching, stop_now.wait(), timeout_s=grace_s)
        if not serving.done():
            with contextlib.suppress(Exception):  # the engine may be gone by now
                aborted = await service.in_flight.abort_all(service.engine)
                logger.warning("shutting down: %d requests were cut off", aborted)
            await _first_of(serving, asyncio.sleep(0 if stop_now.is_set() else ABORTED_STREAMS_S))
            _cut_connections(server)
        await serving
        return True
    finally:
        watching.cancel()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _cut_connections(server: Server) -> None:
    """End whatever is still being answered; its requests are aborted as when a client leaves."""
    server.force_exit = True
    for task in list(server.server_state.tasks):
        task.cancel()
    for connection in list(server.server_state.connections):
        connection.transport.close()


async def _watch_engine(engine_is_alive: Callable[[], bool], domain_events: Sequence[DomainEvent]) -> None:
    """Log what happens to domains; return once the engine has ended and streams have had time to tell their clients."""
    logged = 0
    while engine_is_alive():
        for event in domain_events[logged:]:
            log = logger.warning if event.state == "down" else logger.info
            moved = f", {event.moved_requests} requests moved" if event.moved_requests else ""
            log("domain %s is %s%s%s", event.domain_id, event.state, moved, f": {event.detail}" if event.detail else "")
        logged = len(domain_events)
        await asyncio.sleep(ENGINE_CHECK_S)
    await asyncio.sleep(ENGINE_CHECK_S)


async def _first_of(*work: Awaitable[Any], timeout_s: float | None = None) -> None:
    """Wait until one of `work` is done; only the coroutines started here are cancelled then."""
    given = [one for one in work if isinstance(one, asyncio.Task)]
    started = [asyncio.ensure_future(one) for one in work if not isinstance(one, asyncio.Task)]
    await asyncio.wait([*given, *started], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for task in started:
        task.cancel()


class _NotCutOff(logging.Filter):
    """Leaves out that a request was cancelled: only `_cut_connections` does that, and it is told in one line."""

    def filter(self, record: logging.LogRecord) -> bool:
        """False for the traceback of a cancelled request."""
        return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def configure_logging(level: str) -> None:
    """Log lines go to standard error; uvicorn's own start and stop messages only with `debug`."""
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(message)s"}},
            "filters": {"not cut off": {"()": _NotCutOff}},
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "stream": sys.stderr}},
            "loggers": {
                "superinfer": {"handlers": ["stderr"], "level": level.upper(), "propagate": False},
                "uvicorn": {"handlers": ["stderr"], "level": level.upper(), "propagate": False},
                "uvicorn.error": {"level": "DEBUG" if level == "debug" else "ERROR", "filters": ["not cut off"]},
            },
        }
    )
