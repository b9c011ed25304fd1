"""What an engine asks of its devices: their health, so that work goes on elsewhere, and limits of bandwidth."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq
from engine_harness import RUNNER, START_S, Received, collect, is_right, toy_config, toy_request

from superinfer.contracts.contract import BEST_EFFORT_ID, Bound, ResourceConstraints, SLOContract
from superinfer.executor import device_watch, spared_cores
from superinfer.executor.client import EngineClient
from superinfer.executor.config import EngineConfig
from superinfer.executor.engine import Engine
from superinfer.executor.idle_class import IdleClass
from superinfer.executor.messages import Shutdown
from superinfer.executor.runtime.curve_file import save_curve
from superinfer.executor.runtime.description import HealthEvent
from superinfer.executor.runtime.simulated import SimulatedRuntime
from superinfer.executor.spared_cores import OwnCores
from superinfer.scheduler.config import SchedulerConfig
from superinfer.scheduler.fault_map import HomeAndBackup
from superinfer.scheduler.request import Request
from superinfer.scheduler.topology import parse_topology

pytestmark = pytest.mark.usefixtures("toy_processes")

needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="both domains would be on one core")

FILE = "nodes: [{name: n, devices: [{name: d, type: H100-SXM5}]}]"


def end(endpoint: str) -> None:
    context: zmq.Context = zmq.Context()  # type: ignore[type-arg]
    socket = context.socket(zmq.DEALER)
    socket.connect(endpoint)
    socket.send(msgspec.msgpack.encode(Shutdown()))
    context.destroy(linger=1000)


@contextlib.contextmanager
def engine_on(runtime: SimulatedRuntime, config: EngineConfig, endpoint: str) -> Iterator[None]:
    """Two domains on the runtime's first two slices, served by a thread of this process."""
    engine = Engine(
        config,
        endpoint,
        runner=RUNNER,
        worker_cores=[[0], [min(1, max(os.sched_getaffinity(0)))]],
        runtime=runtime,
    )
    thread = threading.Thread(target=engine.run)
    thread.start()
    try:
        yield
    finally:
        end(endpoint)
        thread.join(20)
    assert not thread.is_alive()


@needs_two_cores
def test_a_fatal_event_moves_the_requests_of_the_domain_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_watch, "LOOK_S", 0.02)
    runtime = SimulatedRuntime(parse_topology(FILE, "test"))
    endpoint = f"ipc://{tmp_path}/engine.sock"

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

    with engine_on(runtime, toy_config(tmp_path, step_s=0.01, domains=2), endpoint):
        right, details = asyncio.run(scenario())
    assert all(right)
    assert details == ["row remapping failed"]


def reserving(directory: Path, runtime: SimulatedRuntime) -> tuple[EngineConfig, float]:
    """A contract that holds half of the device for domain 0, best effort in domain 1; and that half's GB/s."""
    (device,) = runtime.topology().devices
    curve = runtime.bandwidth_curve(device.device_id)
    save_curve(runtime.vendor, device, curve)
    half = max(point.gb_per_s for point in curve) / 2
    reserved = SLOContract(
        service_id="reserved",
        latency=(Bound(0.99, 60_000.0),),
        resources=ResourceConstraints(reserved_bandwidth_gb_per_s=half),
    )
    homes = {"reserved": HomeAndBackup(("0",)), BEST_EFFORT_ID: HomeAndBackup(("1",))}
    config = toy_config(
        directory,
        step_s=0.01,
        domains=2,
        contracts=[reserved],
        scheduler=SchedulerConfig(policy="slack", max_model_len=512, fault_domains=homes),
    )
    return config, half


def reserved_request(number: int, max_tokens: int) -> Request:
    request = toy_request(number, max_tokens=max_tokens)
    request.contract_id = "reserved"
    return request


def test_best_effort_beside_a_reservation_is_held_to_what_it_leaves_and_let_go_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUPERINFER_CACHE", str(tmp_path / "cache"))
    runtime = SimulatedRuntime(parse_topology(FILE, "test"))
    config, half = reserving(tmp_path, runtime)
    endpoint = f"ipc://{tmp_path}/engine.sock"

    async def scenario() -> tuple[int, dict[int, float], dict[int, float]]:
        client = EngineClient(endpoint)
        try:
            ready = await client.connect(START_S)
            hog = asyncio.create_task(collect(client, toy_request(0, max_tokens=200)))
            stream = asyncio.create_task(collect(client, reserved_request(1, 60)))
            await asyncio.sleep(0.3)
            beside = dict(runtime.limits_gb_per_s)
            await stream
            await asyncio.sleep(0.3)
            alone = dict(runtime.limits_gb_per_s)
            await hog
            return ready.domains[1].worker_pid, beside, alone
        finally:
            await client.close()

    with engine_on(runtime, config, endpoint):
        pid, beside, alone = asyncio.run(scenario())
    assert beside == {pid: pytest.approx(half, rel=0.01)}
    assert alone == {}


class Told(OwnCores):
    """What a client is told to keep off: each change, in order."""

    def __init__(self) -> None:
        self.cores: list[list[int]] = []

    def keep_off(self, cores: Collection[int]) -> None:
        if not self.cores or self.cores[-1] != list(cores):
            self.cores.append(list(cores))


@needs_two_cores
def test_engine_and_clients_keep_off_a_holders_core_and_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUPERINFER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(spared_cores, "LINGER_S", 0.1)
    runtime = SimulatedRuntime(parse_topology(FILE, "test"))
    config, _ = reserving(tmp_path, runtime)
    endpoint = f"ipc://{tmp_path}/engine.sock"
    usable, told, late = os.sched_getaffinity(0), Told(), Told()

    async def scenario() -> tuple[set[int], set[int]]:
        """Where the engine, a thread of this process, may run beside a reserved stream and after it."""
        clients = [EngineClient(endpoint, own_cores=told), EngineClient(endpoint, own_cores=late)]
        try:
            await clients[0].connect(START_S)
            stream = asyncio.create_task(collect(clients[0], reserved_request(0, 400)))
            await until(lambda: [0] in told.cores)
            beside = os.sched_getaffinity(0)
            await clients[1].connect(START_S)
            await until(lambda: [0] in late.cores)
            await clients[0].abort("r0")
            await stream
            deadline_s = time.monotonic() + 30.0
            while told.cores[-1] or late.cores[-1]:
                assert time.monotonic() < deadline_s
                await clients[0].stats()  # an engine that sleeps has nobody to keep off
            return beside, os.sched_getaffinity(0)
        finally:
            for client in clients:
                await client.close()

    with engine_on(runtime, config, endpoint):
        beside, after = asyncio.run(scenario())
    assert beside == usable - {0}
    assert after == usable
    assert told.cores[-2:] == [[0], []]
    assert late.cores[-2:] == [[0], []]


@pytest.mark.skipif(not IdleClass().is_open, reason="this process may not leave SCHED_IDLE")
def test_a_step_that_has_given_way_for_too_long_is_recalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERINFER_CACHE", str(tmp_path / "cache"))
    runtime = SimulatedRuntime(parse_topology(FILE, "test"))
    config, _ = reserving(tmp_path, runtime)
    endpoint = f"ipc://{tmp_path}/engine.sock"

    async def scenario() -> bool:
        client = EngineClient(endpoint)
        try:
            pid = (await client.connect(START_S)).domains[1].worker_pid
            stream = asyncio.create_task(collect(client, reserved_request(0, 400)))
            hog, received = toy_request(1, max_tokens=300), Received()
            task = asyncio.create_task(collect(client, hog, received))
            await until(lambda: len(received.token_ids) > 5)
            os.kill(pid, signal.SIGSTOP)  # in the place of somebody who takes all of its core
            os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))  # a toy does not enter the class by itself
            await until(lambda: os.sched_getscheduler(pid) == os.SCHED_OTHER)
            os.kill(pid, signal.SIGCONT)
            await client.abort("r0")
            await asyncio.gather(stream, task)
            return is_right(hog, received)
        finally:
            await client.close()

    with engine_on(runtime, config, endpoint):
        assert asyncio.run(scenario())


async def until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so; it fails after 30 s."""
    deadline_s = time.monotonic() + 30.0
    while not is_so():
        assert time.monotonic() < deadline_s, "it has not come to be so"
        await asyncio.sleep(0.01)
