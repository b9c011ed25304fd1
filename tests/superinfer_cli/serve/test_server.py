"""The server's life on a real socket, with signals, over an engine in memory."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import httpx
import pytest

from superinfer.cli.serve.address import bind, listen
from superinfer.cli.serve.server import run_server
from superinfer.executor.messages import DomainEvent

pytestmark = pytest.mark.anyio


class Running:
    """`run_server` as a task, once it is ready, and a client of it."""

    def __init__(self, app, engine, grace_s: float) -> None:
        self.engine_is_alive = True
        self.domain_events: list[DomainEvent] = []
        self.engine = engine
        self.bound = bind("127.0.0.1", 0)
        self.port = self.bound.getsockname()[1]
        listen(self.bound, "127.0.0.1", self.port)
        self.ready = asyncio.Event()
        self.task = asyncio.create_task(
            run_server(
                app,
                self.bound,
                grace_s=grace_s,
                log_level="warning",
                on_ready=self.ready.set,
                engine_is_alive=lambda: self.engine_is_alive,
                domain_events=self.domain_events,
            )
        )
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=20)

    async def complete(self, *, stream: bool) -> httpx.Response | httpx.HTTPError:
        try:
            return await self.client.post("/v1/completions", json={"model": "tiny", "prompt": "a", "stream": stream})
        except httpx.HTTPError as error:
            return error

    async def in_flight(self, *, stream: bool) -> asyncio.Task:
        answer = asyncio.create_task(self.complete(stream=stream))
        async with asyncio.timeout(5):
            while not self.engine.running:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        return answer

    async def ended(self, timeout_s: float = 10) -> bool:
        return await asyncio.wait_for(self.task, timeout_s)


@pytest.fixture
async def start(make_app, engine):
    started = []

    async def make(grace_s: float = 10.0) -> Running:
        running = Running(make_app(), engine, grace_s)
        started.append(running)
        await asyncio.wait_for(running.ready.wait(), 10)
        return running

    yield make
    for running in started:
        running.task.cancel()
        await asyncio.gather(running.task, return_exceptions=True)
        await running.client.aclose()
        running.bound.close()


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_idle_server_ends_at_once(start, number):
    server = await start()
    assert (await server.client.get("/health")).status_code == 200
    began_s = time.monotonic()
    send(number)
    assert await server.ended() is True
    assert time.monotonic() - began_s < 3
    with pytest.raises(httpx.ConnectError):
        await httpx.AsyncClient().get(f"http://127.0.0.1:{server.port}/health")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_in_flight_finishes_within_the_grace(start, engine, stream):
    server = await start(grace_s=30)
    engine.pause = 4
    answer = await server.in_flight(stream=stream)
    send(signal.SIGTERM)
    await asyncio.sleep(0.5)
    assert not server.task.done()
    engine.go_on.set()
    response = await answer
    assert response.status_code == 200
    assert "stop" in response.text
    assert await server.ended() is True
    assert not engine.aborts


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_outlasts_the_grace_is_told_so(start, engine, stream):
    server = await start(grace_s=0.3)
    engine.pause = 4
    answer = await server.in_flight(stream=stream)
    send(signal.SIGTERM)
    response = await answer
    assert "shutting_down" in response.text
    assert response.status_code == (200 if stream else 503)
    assert await server.ended() is True
    assert not engine.running


async def test_a_second_signal_does_not_wait_for_the_grace(start, engine):
    server = await start(grace_s=60)
    engine.pause = 4
    answer = await server.in_flight(stream=True)
    send(signal.SIGTERM)
    await asyncio.sleep(0.3)
    assert not server.task.done()
    send(signal.SIGTERM)
    assert await server.ended(5) is True
    await answer
    assert not engine.running


async def test_the_end_of_the_engine_ends_the_server(start):
    server = await start()
    server.engine_is_alive = False
    assert await server.ended() is False


async def test_a_domain_that_dies_is_logged_once_with_what_moved(start, capfd):
    server = await start()
    event = DomainEvent("0", "down", 1.0, 42, moved_requests=3, detail="was killed by SIGKILL")
    server.domain_events.append(event)
    await asyncio.sleep(1.5)
    lines = [line for line in capfd.readouterr().err.splitlines() if "domain 0 is down" in line]
    assert len(lines) == 1
    assert "3 requests moved: was killed by SIGKILL" in lines[0]
