"""An engine whose domains hold the model in several precisions: who may run where, also when a domain dies."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from engine_harness import START_S, Received, collect, is_right, toy_config, toy_engine, toy_request, write_profile

from superinfer.contracts.contract import Bound, SLOContract
from superinfer.executor.client import EngineClient
from superinfer.executor.config import DomainGroup, EngineConfig
from superinfer.executor.journal import Begun, begin, read_journal
from superinfer.executor.messages import EngineReady, Finished, Rejected
from superinfer.scheduler.config import SchedulerConfig
from superinfer.scheduler.request import Request

pytestmark = pytest.mark.usefixtures("toy_processes")

EXACT, ROUNDED = "0", "1"
LATENCY = (Bound(0.99, 60_000.0),)
STRICT = SLOContract(service_id="strict", latency=LATENCY)
TOLERANT = SLOContract(service_id="tolerant", latency=LATENCY, precision_loss_allowed=True)


def config(directory: Path, **options: object) -> EngineConfig:
    """Domain 0 in float32 and domain 1 in int8."""
    paths = [write_profile(directory / f"{dtype}.json", 0.005) for dtype in ("float32", "int8")]
    groups = [
        DomainGroup(kind_id="float32", domains=1, dtype="float32", profile_path=str(paths[0])),
        DomainGroup(
            kind_id="rounded", domains=1, dtype="int8", profile_path=str(paths[1]), loses_precision=True, max_running=4
        ),
    ]
    options.setdefault("scheduler", SchedulerConfig(policy="slack", max_model_len=512, max_running=8))
    return toy_config(directory, step_s=0.005, domains=2, groups=groups, contracts=[STRICT, TOLERANT], **options)


def asks(contract: SLOContract, number: int, max_tokens: int = 30) -> Request:
    request = toy_request(number, max_tokens=max_tokens, prefix=contract.service_id)
    request.contract_id = contract.service_id
    return request


def serve(config: EngineConfig, scenario: Callable[[EngineClient, EngineReady], Awaitable[None]]) -> None:
    async def run(endpoint: str) -> None:
        client = EngineClient(endpoint)
        try:
            await scenario(client, await client.connect(START_S))
        finally:
            await client.close()

    with toy_engine(config) as engine:
        asyncio.run(run(engine.endpoint))


async def started(client: EngineClient, requests: int) -> None:
    """Wait until so many run, and all of them have tokens."""
    deadline_s = time.monotonic() + 10
    while (stats := await client.stats()).running < requests or stats.output_tokens < 5 * requests:
        assert time.monotonic() < deadline_s, "waited in vain"
        await asyncio.sleep(0.01)


def domains_of(received: Received) -> list[str]:
    assert isinstance(received.end, Finished), received.end
    return received.end.domain_ids


def test_strict_requests_run_in_full_precision_alone_and_tolerant_ones_in_both(tmp_path: Path) -> None:
    async def scenario(client: EngineClient, ready: EngineReady) -> None:
        assert [(each.kind, each.precision) for each in ready.domains] == [("float32", "float32"), ("rounded", "int8")]
        # More tolerant ones than the domain in int8 takes at once, and fewer strict ones than the other one does.
        requests = [asks(STRICT, number) for number in range(4)] + [asks(TOLERANT, number) for number in range(20)]
        received = await asyncio.gather(*(collect(client, each) for each in requests))
        assert all(map(is_right, requests, received))
        assert {each for one in received[:4] for each in domains_of(one)} == {EXACT}
        assert {each for one in received[4:] for each in domains_of(one)} == {EXACT, ROUNDED}
        stats = await client.stats()
        assert [(each.domain_id, each.kind, each.precision, each.is_up) for each in stats.domains] == [
            (EXACT, "float32", "float32", True),
            (ROUNDED, "rounded", "int8", True),
        ]

    serve(config(tmp_path), scenario)


def test_strict_requests_wait_for_their_dead_domain_and_go_on_there_with_their_kv(tmp_path: Path) -> None:
    async def scenario(client: EngineClient, ready: EngineReady) -> None:
        requests = [asks(STRICT, number, 120) for number in range(4)]
        streams = [asyncio.create_task(collect(client, each)) for each in requests]
        await started(client, len(requests))
        os.kill(ready.domains[0].worker_pid, signal.SIGKILL)
        received = await asyncio.gather(*streams)
        assert all(map(is_right, requests, received))
        assert all(domains_of(one) == [EXACT] for one in received)
        assert client.domain_events[0].moved_requests == 4
        assert [each.recomputed_tokens for each in client.resumptions] == [0]

    serve(config(tmp_path), scenario)


def test_tolerant_requests_of_a_dead_domain_go_on_in_full_precision_with_their_kv(tmp_path: Path) -> None:
    async def scenario(client: EngineClient, ready: EngineReady) -> None:
        requests = [asks(TOLERANT, number, 400) for number in range(12)]
        streams = [asyncio.create_task(collect(client, each)) for each in requests]
        await started(client, len(requests))
        os.kill(ready.domains[1].worker_pid, signal.SIGKILL)
        received = await asyncio.gather(*streams)
        assert all(map(is_right, requests, received))
        assert client.domain_events[0].moved_requests == 4
        assert [domains_of(one) for one in received].count([ROUNDED, EXACT]) == 4
        assert [each.recomputed_tokens for each in client.resumptions] == [0]

    serve(config(tmp_path, restart_workers=False), scenario)


def test_with_the_last_domain_in_full_precision_strict_requests_end_in_one_error_and_others_go_on(
    tmp_path: Path,
) -> None:
    async def scenario(client: EngineClient, ready: EngineReady) -> None:
        strict = [asks(STRICT, number, 400) for number in range(2)]
        streams = [asyncio.create_task(collect(client, each)) for each in strict]
        await started(client, 2)
        os.kill(ready.domains[0].worker_pid, signal.SIGKILL)
        reason = "contract 'strict': no domain has the devices and the precision it asks for"
        for received in await asyncio.wait_for(asyncio.gather(*streams), 10):
            assert isinstance(received.end, Finished)
            assert received.end.error is not None
            assert received.end.error.startswith(f"domain 0 is lost; {reason}")
        late = (await collect(client, asks(STRICT, 5))).end
        assert isinstance(late, Rejected)
        assert late.code == "no_domain"
        tolerant = asks(TOLERANT, 6)
        received = await collect(client, tolerant)
        assert is_right(tolerant, received)
        assert domains_of(received) == [ROUNDED]
        assert [each.is_up for each in (await client.stats()).domains] == [False, True]

    serve(config(tmp_path, restart_workers=False), scenario)


def test_each_kind_has_its_own_limits_and_kv_memory(tmp_path: Path) -> None:
    async def scenario(client: EngineClient, ready: EngineReady) -> None:
        requests = [asks(TOLERANT, number, 60) for number in range(20)]
        streams = [asyncio.create_task(collect(client, each)) for each in requests]
        await started(client, 12)
        assert [each.running for each in (await client.stats()).domains] == [8, 4]
        assert all(map(is_right, requests, await asyncio.gather(*streams)))

    serve(config(tmp_path), scenario)


def test_a_journal_keeps_of_which_kinds_the_domains_are(tmp_path: Path) -> None:
    async def scenario(client: EngineClient, ready: EngineReady) -> None:
        assert isinstance((await collect(client, asks(STRICT, 0))).end, Finished)

    journal = tmp_path / "journal.jsonl"
    serve(config(tmp_path, journal_path=str(journal)), scenario)
    first = next(read_journal(journal))
    assert isinstance(first, Begun)
    placement = begin(first).placement
    assert placement is not None
    assert [placement.kinds.of(each).precision for each in (EXACT, ROUNDED)] == ["float32", "int8"]
    assert placement.kinds.of(ROUNDED).loses_precision


def test_groups_that_have_another_number_of_domains_are_a_mistake() -> None:
    group = DomainGroup(kind_id="a", domains=2, dtype="float32", profile_path="")
    with pytest.raises(ValueError, match="the groups have 2 domains, not 1"):
        EngineConfig(model_dir="", profile_path="", groups=[group])
