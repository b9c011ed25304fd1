"""The engine process with real worker processes and a toy model whose right output is known."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest
import zmq
from engine_harness import (
    START_S,
    collect,
    is_right,
    process_is_gone,
    toy_config,
    toy_engine,
    toy_request,
)
from toy_runner import expected_output

from superinfer.contracts.contract import Bound, SLOContract
from superinfer.contracts.errors import EngineError, ModelError, ResourceError, UsageError
from superinfer.executor.client import EngineClient
from superinfer.executor.messages import Finished, Rejected, Tokens
from superinfer.scheduler.config import SchedulerConfig

pytestmark = pytest.mark.usefixtures("toy_processes")


def with_client(engine, scenario):
    """Run `scenario(client, ready)` against a started engine."""

    async def run():
        client = EngineClient(engine.endpoint, engine_alive=engine.is_alive)
        try:
            return await asyncio.wait_for(scenario(client, await client.connect(START_S)), 60)
        finally:
            await client.close()

    return asyncio.run(run())


async def until(condition, timeout_s=10.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.01)


def test_every_request_gets_its_own_tokens_in_order_from_both_domains(tmp_path):
    async def scenario(client, ready):
        requests = [toy_request(i, prompt=1 + 17 * i % 300, max_tokens=1 + i % 20) for i in range(40)]
        received = await asyncio.gather(*(collect(client, request) for request in requests))
        assert all(map(is_right, requests, received))
        domains = {domain for one in received for domain in one.end.domain_ids}
        stats = await client.stats()
        assert domains == {"0", "1"} == set(stats.domains_up)
        assert stats.output_tokens == sum(request.sampling.max_tokens for request in requests)
        await until_free(client)

    async def until_free(client):
        for _ in range(200):
            stats = await client.stats()
            if stats.kv_blocks_free == stats.kv_blocks_total == 512:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("blocks were not given back")

    with toy_engine(toy_config(tmp_path, domains=2)) as engine:
        assert engine.wait_ready(START_S).max_model_len == 512
        with_client(engine, scenario)


def test_planning_ahead_keeps_the_worker_busy(tmp_path):
    step_s, tokens = 0.02, 40

    async def scenario(client, ready):
        spent_s = []
        for i in range(5):  # the best of some tries, since other processes may take the core
            request = toy_request(i, max_tokens=tokens)
            start = time.monotonic()
            assert is_right(request, await collect(client, request))
            spent_s.append(time.monotonic() - start)
        return min(spent_s)

    with toy_engine(toy_config(tmp_path, step_s=step_s)) as engine:
        spent_s = with_client(engine, scenario)
    assert spent_s < tokens * (step_s + 0.003)


def test_an_idle_engine_sleeps(tmp_path):
    async def scenario(client, ready):
        await collect(client, toy_request(0))
        processes = [psutil.Process(pid) for pid in (engine.pid, *(domain.worker_pid for domain in ready.domains))]
        before = [sum(process.cpu_times()[:2]) for process in processes]
        await asyncio.sleep(1.0)
        return [sum(process.cpu_times()[:2]) - spent for process, spent in zip(processes, before, strict=True)]

    with toy_engine(toy_config(tmp_path, domains=2)) as engine:
        assert max(with_client(engine, scenario)) <= 0.03


def test_an_aborted_request_ends_with_the_reason_given_and_frees_its_blocks(tmp_path):
    async def scenario(client, ready):
        events = []
        async for event in await client.submit(toy_request(0, max_tokens=400)):
            events.append(event)
            if len(events) == 3:
                await client.abort("r0", "stop")
        assert isinstance(events[-1], Finished)
        assert events[-1].reason == "stop"
        await client.abort("nobody")
        await asyncio.sleep(0.1)
        stats = await client.stats()
        assert (stats.running, stats.kv_blocks_free) == (0, stats.kv_blocks_total)

    with toy_engine(toy_config(tmp_path, step_s=0.005)) as engine:
        with_client(engine, scenario)


def test_leaving_a_stream_early_aborts_the_request(tmp_path):
    async def scenario(client, ready):
        stream = await client.submit(toy_request(0, max_tokens=400))
        assert isinstance(await anext(stream), Tokens)
        await stream.aclose()
        await asyncio.sleep(0.1)
        assert (await client.stats()).running == 0

    with toy_engine(toy_config(tmp_path, step_s=0.005)) as engine:
        with_client(engine, scenario)


def test_refusals_reach_the_client_and_a_contract_is_accepted_from_registration_to_retirement(tmp_path):
    async def scenario(client, ready):
        contract = SLOContract(service_id="triage", latency=(Bound(0.99, 60_000.0),))
        with_contract = msgspec.structs.replace(toy_request(1), contract_id="triage")
        unknown = await collect(client, msgspec.structs.replace(toy_request(0), contract_id="triage"))
        assert isinstance(unknown.end, Rejected)
        assert unknown.end.code == "unknown_contract"
        await client.register_contract(contract)
        assert is_right(with_contract, await collect(client, with_contract))
        long = await collect(client, toy_request(2, prompt=500, max_tokens=10))
        assert isinstance(long.end, Rejected)
        assert long.end.code == "too_long"
        assert "504" in long.end.message
        triage = [c for c in (await client.stats()).contracts if c.service_id == "triage"]
        assert (triage[0].finished, triage[0].met) == (1, 1)
        await client.retire_contract("triage")
        retired = await collect(client, msgspec.structs.replace(toy_request(3), contract_id="triage"))
        assert isinstance(retired.end, Rejected)
        assert retired.end.code == "unknown_contract"

    with toy_engine(toy_config(tmp_path, model_dir="short")) as engine:
        assert engine.wait_ready(START_S).max_model_len == 504
        with_client(engine, scenario)


def test_in_overload_clients_learn_which_contract_serves_them_and_who_is_refused_when_to_come_again(tmp_path):
    contracts = [
        SLOContract(
            service_id="fast", latency=(Bound(0.99, 250.0),), fallback_allowed=True, alternative_service="slow"
        ),
        SLOContract(service_id="slow", latency=(Bound(0.99, 500.0),)),
    ]

    async def scenario(client, ready):
        requests = [msgspec.structs.replace(toy_request(number), contract_id="fast") for number in range(20)]
        received = await asyncio.gather(*(collect(client, request) for request in requests))
        refused = [one.end for one in received if isinstance(one.end, Rejected)]
        assert {one.code for one in refused} == {"overloaded"}
        assert all(one.retry_after_s > 0 for one in refused)
        assert {one.served for one in received if isinstance(one.end, Finished)} == {None, "slow"}
        stats = {one.service_id: one for one in (await client.stats()).contracts}
        assert stats["fast"].refused == len(refused)
        assert stats["fast"].fell_back == sum(one.served == "slow" for one in received)
        assert stats["fast"].budgets[0].objective == "latency_p99"

    scheduling = SchedulerConfig(policy="fcfs", max_model_len=512, admission="refuse", max_running=1)
    with toy_engine(toy_config(tmp_path, step_s=0.005, scheduler=scheduling, contracts=contracts)) as engine:
        with_client(engine, scenario)


def test_an_id_in_use_is_refused_without_harm_to_the_request_that_has_it(tmp_path):
    async def scenario(client, ready):
        other = EngineClient(engine.endpoint)
        await other.connect(START_S)
        first = asyncio.create_task(collect(client, toy_request(0, max_tokens=50)))
        await asyncio.sleep(0.05)
        with pytest.raises(UsageError, match="'r0' is in use"):
            await client.submit(toy_request(0))
        refused = await collect(other, toy_request(0))
        assert isinstance(refused.end, Rejected)
        assert refused.end.code == "duplicate_id"
        await other.abort("r0")
        assert is_right(toy_request(0, max_tokens=50), await first)
        await other.close()

    with toy_engine(toy_config(tmp_path, step_s=0.005)) as engine:
        with_client(engine, scenario)


def test_a_vanished_client_loses_its_own_requests_only(tmp_path):
    async def scenario(client, ready):
        context = zmq.Context()
        rude = context.socket(zmq.DEALER)
        rude.connect(engine.endpoint)
        rude.send(b"\xc1 not a message")
        request = toy_request(0, max_tokens=400, prefix="rude")
        rude.send(msgspec.msgpack.encode({"type": "Submit", "request": request}))
        assert rude.poll(5000)
        mine = toy_request(1, max_tokens=60)
        task = asyncio.create_task(collect(client, mine))
        context.destroy(linger=0)
        assert is_right(mine, await task)
        assert (await client.stats()).running == 0

    with toy_engine(toy_config(tmp_path, step_s=0.005)) as engine:
        with_client(engine, scenario)


@pytest.mark.parametrize("domains", [1, 2])
def test_sigkill_of_a_worker_under_load_loses_and_doubles_nothing(tmp_path, domains):
    async def scenario(client, ready):
        requests = [toy_request(i, prompt=1 + 37 * i % 200, max_tokens=150) for i in range(30)]
        tasks = [asyncio.create_task(collect(client, request)) for request in requests]
        while (await client.stats()).output_tokens < 300:
            await asyncio.sleep(0.01)
        victim = ready.domains[0].worker_pid
        os.kill(victim, signal.SIGKILL)
        received = await asyncio.gather(*tasks)
        assert all(map(is_right, requests, received))
        await until(lambda: len(client.domain_events) == 2)
        down, up = client.domain_events
        assert (down.state, down.domain_id, down.worker_pid) == ("down", "0", victim)
        assert down.moved_requests > 0
        assert "SIGKILL" in down.detail
        assert (up.state, up.domain_id) == ("up", "0")
        assert up.worker_pid != victim
        again = toy_request(99, max_tokens=5)
        assert is_right(again, await collect(client, again))
        assert process_is_gone(victim)

    with toy_engine(toy_config(tmp_path, step_s=0.01, domains=domains)) as engine:
        with_client(engine, scenario)


def test_a_request_that_kills_two_workers_is_not_passed_on_and_harms_nobody_else(tmp_path):
    async def scenario(client, ready):
        poison = msgspec.structs.replace(toy_request(0), prompt_token_ids=[29_999])
        innocent = [toy_request(i, max_tokens=20) for i in range(1, 4)]
        tasks = [asyncio.create_task(collect(client, request)) for request in (poison, *innocent)]
        ended, *others = await asyncio.gather(*tasks)
        assert all(map(is_right, innocent, others))
        assert ended.end.reason == "error"
        assert "died 2 times" in ended.end.error
        downs = [event for event in client.domain_events if event.state == "down"]
        assert len(downs) == 2
        later = toy_request(9)
        assert is_right(later, await collect(client, later))
        assert any("breaks the toy" in event.detail for event in client.domain_events)

    with toy_engine(toy_config(tmp_path, model_dir="failing:0.001")) as engine:
        with_client(engine, scenario)


def test_the_last_worker_dying_without_restart_ends_every_stream_with_an_error(tmp_path):
    async def scenario(client, ready):
        task = asyncio.create_task(collect(client, toy_request(0, max_tokens=400)))
        await asyncio.sleep(0.1)
        os.kill(ready.domains[0].worker_pid, signal.SIGKILL)
        received = await task
        assert received.end.reason == "error"
        assert "none can be restarted" in received.end.error
        assert received.token_ids == expected_output(toy_request(0).prompt_token_ids, 400)[: len(received.token_ids)]
        await until(lambda: not engine.is_alive())

    with toy_engine(toy_config(tmp_path, step_s=0.005, restart_workers=False)) as engine:
        with_client(engine, scenario)


def test_sigkill_of_the_engine_ends_streams_with_an_error_and_takes_the_workers_along(tmp_path, toy_processes):
    async def scenario(client, ready):
        tasks = [asyncio.create_task(collect(client, toy_request(i, max_tokens=400))) for i in range(5)]
        await asyncio.sleep(0.1)
        start = time.monotonic()
        os.kill(engine.pid, signal.SIGKILL)
        received = await asyncio.gather(*tasks)
        assert time.monotonic() - start < 1.0
        assert {one.end.reason for one in received} == {"error"}
        assert received[0].end.error == "engine process ended unexpectedly"
        assert received[0].end.output_tokens == len(received[0].token_ids) > 0
        late = await collect(client, toy_request(9))
        assert late.end.code == "engine_down"
        with pytest.raises(EngineError):
            await client.stats()
        return [domain.worker_pid for domain in ready.domains]

    with toy_engine(toy_config(tmp_path, step_s=0.005, domains=2)) as engine:
        pids = with_client(engine, scenario)
        assert all(map(process_is_gone, pids))
    assert list(toy_processes.iterdir()) == []


def test_closing_under_load_leaves_no_process_and_no_socket_file(tmp_path, toy_processes):
    async def scenario(client, ready):
        task = asyncio.create_task(collect(client, toy_request(0, max_tokens=400)))
        await asyncio.sleep(0.05)
        pids = [engine.pid, *(domain.worker_pid for domain in ready.domains)]
        start = time.monotonic()
        await asyncio.to_thread(engine.close)
        assert time.monotonic() - start < 2.0
        assert (await task).end.reason == "error"
        return pids

    with toy_engine(toy_config(tmp_path, step_s=0.01, domains=2)) as engine:
        pids = with_client(engine, scenario)
    assert all(map(process_is_gone, pids))
    assert list(toy_processes.iterdir()) == []


def test_the_engine_ends_with_its_parent(tmp_path, toy_processes):
    program = f"""
import sys, time
from pathlib import Path
from engine_harness import toy_config, toy_engine
engine = toy_engine(toy_config(Path({str(tmp_path)!r}), domains=2))
engine.start()
print(engine.pid, *(domain.worker_pid for domain in engine.wait_ready({START_S}).domains), flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 3
    parent.kill()
    parent.wait()
    assert all(map(process_is_gone, pids))
    assert list(toy_processes.iterdir()) == []


@pytest.mark.parametrize(
    ("model_dir", "kind", "message"),
    [
        ("no-model", ModelError, "model 'no-model' does not exist; accepted: toy"),
        ("no-memory", ResourceError, "KV cache: 2 GB asked for, 1 GB free"),
        ("suicide", EngineError, "the worker of domain 0 exited with code 9 while it started"),
    ],
)
def test_a_worker_that_cannot_start_is_the_launchers_exception(tmp_path, toy_processes, model_dir, kind, message):
    with toy_engine(toy_config(tmp_path, model_dir=model_dir)) as engine:
        with pytest.raises(kind) as raised:
            engine.wait_ready(START_S)
        pid = engine.pid
        assert process_is_gone(pid)
    assert str(raised.value) == message
    assert list(toy_processes.iterdir()) == []


def test_a_profile_that_cannot_be_read_is_the_launchers_exception(tmp_path):
    config = msgspec.structs.replace(toy_config(tmp_path), profile_path=str(Path(tmp_path) / "none.json"))
    with toy_engine(config) as engine, pytest.raises(ModelError, match=r"none\.json cannot be read"):
        engine.wait_ready(START_S)


def test_connecting_to_an_engine_that_has_died_fails_soon(tmp_path):
    async def connect(endpoint, alive):
        client = EngineClient(endpoint, engine_alive=alive)
        try:
            await client.connect(0.5)
        finally:
            await client.close()

    endpoint = f"ipc://{tmp_path}/nobody.sock"
    with pytest.raises(EngineError, match="engine process ended"):
        asyncio.run(connect(endpoint, lambda: False))
    with pytest.raises(EngineError, match=r"no engine answered .* within 0\.5 s"):
        asyncio.run(connect(endpoint, None))


def test_an_unknown_policy_is_refused_by_the_launcher(tmp_path):
    config = toy_config(tmp_path, scheduler=SchedulerConfig(policy="lottery"))
    with toy_engine(config) as engine, pytest.raises(Exception, match="lottery"):
        engine.wait_ready(START_S)


def test_a_worker_that_hangs_in_a_step_is_killed_and_its_requests_go_on(tmp_path):
    async def scenario(client, ready):
        request = toy_request(0, max_tokens=100)
        task = asyncio.create_task(collect(client, request))
        await asyncio.sleep(0.2)
        os.kill(ready.domains[0].worker_pid, signal.SIGSTOP)
        assert is_right(request, await task)
        assert "hangs in a step" in client.domain_events[0].detail
        assert process_is_gone(ready.domains[0].worker_pid)

    with toy_engine(toy_config(tmp_path, step_s=0.01, step_timeout_s=0.4)) as engine:
        with_client(engine, scenario)


@pytest.mark.slow
def test_a_worker_that_can_never_start_again_is_given_up_after_some_tries(tmp_path):
    async def scenario(client, ready):
        task = asyncio.create_task(collect(client, toy_request(0, max_tokens=400)))
        await asyncio.sleep(0.1)
        os.kill(ready.domains[0].worker_pid, signal.SIGKILL)
        received = await task
        assert "none can be restarted" in received.end.error
        downs = [event for event in client.domain_events if event.state == "down"]
        assert len(downs) == 6
        assert downs[-1].detail == "KV cache: 2 GB asked for, 1 GB free"
        assert downs[-1].time_s - downs[-2].time_s > 4.0
        await until(lambda: not engine.is_alive())

    with toy_engine(toy_config(tmp_path, model_dir=f"once:{tmp_path}/started")) as engine:
        with_client(engine, scenario)
