"""Processes that are stopped, what the engine and its clients do then, and the process that workers are forked from."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from engine_harness import START_S, collect, is_right, process_is_gone, toy_config, toy_engine, toy_request

from superinfer.contracts.errors import EngineError
from superinfer.executor.client import EngineClient
from superinfer.executor.launch import EngineProcess
from superinfer.executor.messages import Finished, Rejected

pytestmark = pytest.mark.usefixtures("toy_processes")

SILENCE = "the engine has said nothing for 0.4 s: stopped, or hung"


async def until(condition: Callable[[], bool], timeout_s: float = 15.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.01)


def fork_server_of(engine: EngineProcess, worker_pid: int) -> int:
    """The other one with the command line that the worker has inherited."""
    children = psutil.Process(engine.pid).children()
    return next(child.pid for child in children if child.pid != worker_pid and "--socket" in child.cmdline())


def test_a_stopped_engine_ends_requests_with_one_error_and_serves_again_when_it_goes_on(tmp_path: Path) -> None:
    async def scenario(engine: EngineProcess) -> None:
        client = EngineClient(engine.endpoint, silence_s=0.4)
        try:
            await client.connect(START_S)
            stream = asyncio.create_task(collect(client, toy_request(0, max_tokens=400)))
            await asyncio.sleep(0.2)
            os.kill(engine.pid, signal.SIGSTOP)
            asked = asyncio.create_task(client.stats())
            received = await asyncio.wait_for(stream, 5)
            assert isinstance(received.end, Finished)
            assert received.end.error == SILENCE
            with pytest.raises(EngineError, match=SILENCE):
                await asked
            with pytest.raises(EngineError, match=SILENCE):
                await client.stats()
            refused = (await collect(client, toy_request(1))).end
            assert isinstance(refused, Rejected)
            assert (refused.code, refused.message) == ("engine_down", SILENCE)
            os.kill(engine.pid, signal.SIGCONT)
            request = toy_request(2)
            while isinstance((received := await collect(client, request)).end, Rejected):
                await asyncio.sleep(0.02)
            assert is_right(request, received)
            assert (await client.stats()).running == 0
        finally:
            await client.close()

    with toy_engine(toy_config(tmp_path, step_s=0.005)) as engine:
        asyncio.run(scenario(engine))


def test_an_idle_engine_is_not_silent(tmp_path: Path) -> None:
    async def scenario(engine: EngineProcess) -> None:
        client = EngineClient(engine.endpoint, silence_s=0.1)
        try:
            await client.connect(START_S)
            await asyncio.sleep(0.5)
            assert (await client.stats()).running == 0
        finally:
            await client.close()

    with toy_engine(toy_config(tmp_path)) as engine:
        asyncio.run(scenario(engine))


def test_requests_run_on_while_the_fork_server_is_killed_and_a_worker_after_it(tmp_path: Path) -> None:
    async def scenario(engine: EngineProcess) -> None:
        client = EngineClient(engine.endpoint)
        try:
            ready = await client.connect(START_S)
            request = toy_request(0, max_tokens=300)
            stream = asyncio.create_task(collect(client, request))
            await asyncio.sleep(0.1)
            worker_pid = ready.domains[0].worker_pid
            server_pid = fork_server_of(engine, worker_pid)
            os.kill(server_pid, signal.SIGKILL)
            await asyncio.to_thread(process_is_gone, server_pid)
            os.kill(worker_pid, signal.SIGKILL)
            received = await stream
            assert is_right(request, received)
            assert [event.state for event in client.domain_events] == ["down", "up"]
            assert "SIGKILL" in client.domain_events[0].detail
        finally:
            await client.close()

    with toy_engine(toy_config(tmp_path, step_s=0.002)) as engine:
        asyncio.run(scenario(engine))
        pids = [child.pid for child in psutil.Process(engine.pid).children(recursive=True)]
    assert all(process_is_gone(pid) for pid in pids)


def test_workers_can_be_made_without_a_fork_server(tmp_path: Path) -> None:
    async def scenario(engine: EngineProcess) -> None:
        client = EngineClient(engine.endpoint)
        try:
            await client.connect(START_S)
            request = toy_request(0)
            assert is_right(request, await collect(client, request))
        finally:
            await client.close()

    with toy_engine(toy_config(tmp_path, fork_workers=False)) as engine:
        asyncio.run(scenario(engine))
