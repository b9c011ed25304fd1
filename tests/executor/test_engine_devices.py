"""Health of devices reaches the fault path: what runs on a device that fails goes on elsewhere."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import msgspec
import pytest
import zmq
from engine_harness import RUNNER, START_S, collect, is_right, toy_config, toy_request

from superinfer.executor import device_watch
from superinfer.executor.client import EngineClient
from superinfer.executor.engine import Engine
from superinfer.executor.messages import Shutdown
from superinfer.executor.runtime.description import HealthEvent
from superinfer.executor.runtime.simulated import SimulatedRuntime
from superinfer.scheduler.topology import parse_topology

pytestmark = pytest.mark.usefixtures("toy_processes")

FILE = "nodes: [{name: n, devices: [{name: d, type: H100-SXM5}]}]"


def end(endpoint: str) -> None:
    context: zmq.Context = zmq.Context()  # type: ignore[type-arg]
    socket = context.socket(zmq.DEALER)
    socket.connect(endpoint)
    socket.send(msgspec.msgpack.encode(Shutdown()))
    context.destroy(linger=1000)


def test_a_fatal_event_moves_the_requests_of_the_domain_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_watch, "LOOK_S", 0.02)
    runtime = SimulatedRuntime(parse_topology(FILE, "test"))
    endpoint = f"ipc://{tmp_path}/engine.sock"
    engine = Engine(
        toy_config(tmp_path, step_s=0.01, domains=2),
        endpoint,
        runner=RUNNER,
        worker_cores=[[0], [min(1, max(os.sched_getaffinity(0)))]],
        runtime=runtime,
    )
    thread = threading.Thread(target=engine.run)
    thread.start()

    async def scenario() -> tuple[list[bool], list[str]]:
        client = EngineClient(endpoint)
        try:
            await client.connect(START_S)
            requests = [toy_request(i, max_tokens=60) for i in range(6)]
            tasks = [asyncio.create_task(collect(client, request)) for request in requests]
            await asyncio.sleep(0.2)
            runtime.emit(
                HealthEvent(
                    device_id="n/d", kind="ecc", severity="fatal", detail="row remapping failed", time_s=0.0, mask=0b1
                )
            )
            received = await asyncio.wait_for(asyncio.gather(*tasks), 30)
            details = [event.detail for event in client.domain_events if event.state == "down"]
            return [is_right(*pair) for pair in zip(requests, received, strict=True)], details
        finally:
            await client.close()

    try:
        right, details = asyncio.run(scenario())
        assert all(right)
        assert details == ["row remapping failed"]
    finally:
        end(endpoint)
        thread.join(20)
    assert not thread.is_alive()
