"""Failover with the real model: a killed worker changes nothing in what the clients read."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest
from engine_harness import Received, collect, process_is_gone, write_profile

from superinfer.contracts.contract import SLOContract
from superinfer.executor.client import EngineClient
from superinfer.executor.config import Checkpoint, DomainGroup, EngineConfig
from superinfer.executor.launch import EngineProcess
from superinfer.executor.messages import Finished
from superinfer.executor.models.catalog import resolve_model
from superinfer.executor.tokenizer import load_tokenizer
from superinfer.scheduler.config import SchedulerConfig
from superinfer.scheduler.fault_map import HomeAndBackup
from superinfer.scheduler.request import Request, SamplingParams

SUBJECTS = ["the sea", "a clock", "two brothers", "an empty house", "winter", "the market", "a river", "night"]
STEP_S = 0.03
# Long enough for the kill to come while they run, also where this process gets no turn for a second or two.
MAX_TOKENS = 160
CONTRACT_IDS = ["left", "right"]


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["in_place", "copy"])
def test_greedy_outputs_are_equal_with_and_without_a_worker_killed_under_load(tmp_path, placement):
    source = resolve_model("smollm2-135m-instruct")
    tokenizer = load_tokenizer(source.directory)
    prompts = [tokenizer.encode(f"Tell me about {subject}. " * (1 + 3 * i)) for i, subject in enumerate(SUBJECTS)]
    config = EngineConfig(
        model_dir=str(source.directory),
        profile_path=str(write_profile(tmp_path / "profile.json", STEP_S)),
        domains=2,
        dtype="float32",
        kv_cache_bytes=512 << 20,
        checkpoint=Checkpoint(placement=placement),
        contracts=[SLOContract(service_id=contract_id) for contract_id in CONTRACT_IDS],
        scheduler=SchedulerConfig(
            policy="fcfs",
            max_model_len=1024,
            host_blocks=400,
            fault_domains={"left": HomeAndBackup(("0",)), "right": HomeAndBackup(("1",))},
        ),
    )

    async def run(engine: EngineProcess, prefix: str, victim: int | None) -> list[Received]:
        client = EngineClient(engine.endpoint, engine_alive=engine.is_alive)
        await client.connect(120)
        sampling = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True)
        begun = [Received() for _ in prompts]
        tasks = [
            asyncio.create_task(
                collect(
                    client,
                    Request(
                        request_id=f"{prefix}{i}",
                        contract_id=CONTRACT_IDS[i % 2],
                        prompt_token_ids=prompt,
                        sampling=sampling,
                        arrival_s=time.monotonic(),
                    ),
                    begun[i],
                )
            )
            for i, prompt in enumerate(prompts)
        ]
        if victim is not None:
            # While a prompt is long under way in the other domain, the dead one may be back before that takes more.
            while not all(len(one.token_ids) >= 5 for one in begun):
                await asyncio.sleep(0.01)
            os.kill(victim, signal.SIGKILL)
        received = await asyncio.gather(*tasks)
        if victim is not None:
            down = client.domain_events[0]
            assert (down.state, down.worker_pid) == ("down", victim)
            assert down.moved_requests == len(prompts) / 2
            assert [one.end.domain_ids for one in received] == [["0", "1"], ["1"]] * 4
            (resumed,) = client.resumptions
            # Recomputed are what came after the last copy and what was in flight: a few tokens a request, no prompt.
            assert resumed.recomputed_tokens <= (0 if placement == "in_place" else 8 * resumed.requests)
        await client.close()
        return received

    with EngineProcess(config) as engine:
        ready = engine.wait_ready(120)
        undisturbed = asyncio.run(run(engine, "undisturbed-", None))
        disturbed = asyncio.run(run(engine, "disturbed-", ready.domains[0].worker_pid))
        pids = [engine.pid, *(domain.worker_pid for domain in ready.domains)]
    assert all(isinstance(one.end, Finished) and one.end.reason == "length" for one in disturbed)
    assert [one.token_ids for one in disturbed] == [one.token_ids for one in undisturbed]
    assert all(map(process_is_gone, pids))


@pytest.mark.slow
def test_strict_requests_keep_their_tokens_beside_an_int8_domain_also_when_their_worker_is_killed(tmp_path):
    source = resolve_model("smollm2-135m-instruct")
    tokenizer = load_tokenizer(source.directory)
    prompts = [tokenizer.encode(f"Tell me about {subject}.") for subject in SUBJECTS]
    profiles = [str(write_profile(tmp_path / f"{dtype}.json", STEP_S)) for dtype in ("float32", "int8")]
    config = EngineConfig(
        model_dir=str(source.directory),
        profile_path=profiles[0],
        domains=2,
        kv_cache_bytes=256 << 20,
        groups=[
            DomainGroup(kind_id="exact", domains=1, dtype="float32", profile_path=profiles[0], kv_cache_bytes=64 << 20),
            DomainGroup(
                kind_id="rounded",
                domains=1,
                dtype="int8",
                profile_path=profiles[1],
                loses_precision=True,
                kv_cache_bytes=64 << 20,
            ),
        ],
        contracts=[
            SLOContract(service_id="strict"),
            SLOContract(service_id="rounded", precision_loss_allowed=True),
        ],
        scheduler=SchedulerConfig(
            policy="fcfs",
            max_model_len=512,
            prefix_cache=True,
            fault_domains={"rounded": HomeAndBackup(("1",))},
        ),
    )

    async def ask(client: EngineClient, contract_id: str, name: str, number: int) -> Received:
        request = Request(
            request_id=f"{contract_id}-{name}{number}",
            contract_id=contract_id,
            prompt_token_ids=prompts[number],
            sampling=SamplingParams(max_tokens=32, temperature=0.0, ignore_eos=True),
            arrival_s=time.monotonic(),
        )
        return await collect(client, request)

    async def run(endpoint: str, victim: int) -> None:
        client = EngineClient(endpoint)
        await client.connect(120)
        numbers = range(len(prompts))
        rounded = await asyncio.gather(*(ask(client, "rounded", "a", number) for number in numbers))
        alone = await asyncio.gather(*(ask(client, "strict", "a", number) for number in numbers))
        so_far = (await client.stats()).output_tokens
        both = [
            asyncio.create_task(ask(client, contract_id, "b", number))
            for number in numbers
            for contract_id in ("strict", "rounded")
        ]
        while (await client.stats()).output_tokens < so_far + 100:
            await asyncio.sleep(0.01)
        os.kill(victim, signal.SIGKILL)
        together = await asyncio.gather(*both)
        await client.close()
        assert [one.token_ids for one in together[::2]] == [one.token_ids for one in alone]
        assert all(one.end.domain_ids == ["0"] for one in (*alone, *together[::2]))
        assert [one.token_ids for one in together[1::2]] == [one.token_ids for one in rounded]
        assert all(one.end.domain_ids == ["1"] for one in rounded)
        # int8 is another model: with equal tokens everywhere nothing above would show which one ran.
        assert any(one.token_ids != other.token_ids for one, other in zip(alone, rounded, strict=True))

    with EngineProcess(config) as engine:
        ready = engine.wait_ready(120)
        assert [domain.precision for domain in ready.domains] == ["float32", "int8"]
        asyncio.run(run(engine.endpoint, ready.domains[0].worker_pid))
