"""Failover with the real model: a killed worker changes nothing in what the clients read."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest
from engine_harness import Received, collect, process_is_gone, write_profile

from superinfer.executor.client import EngineClient
from superinfer.executor.config import Checkpoint, EngineConfig
from superinfer.executor.launch import EngineProcess
from superinfer.executor.messages import Finished
from superinfer.executor.models.catalog import resolve_model
from superinfer.executor.tokenizer import load_tokenizer
from superinfer.scheduler.config import SchedulerConfig
from superinfer.scheduler.request import Request, SamplingParams

SUBJECTS = ["the sea", "a clock", "two brothers", "an empty house", "winter", "the market", "a river", "night"]
STEP_S = 0.03


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
        scheduler=SchedulerConfig(policy="fcfs", max_model_len=1024, host_blocks=400),
    )

    async def run(engine: EngineProcess, prefix: str, victim: int | None) -> list[Received]:
        client = EngineClient(engine.endpoint, engine_alive=engine.is_alive)
        await client.connect(120)
        sampling = SamplingParams(max_tokens=48, temperature=0.0, ignore_eos=True)
        tasks = [
            asyncio.create_task(
                collect(
                    client,
                    Request(
                        request_id=f"{prefix}{i}",
                        contract_id="",
                        prompt_token_ids=prompt,
                        sampling=sampling,
                        arrival_s=time.monotonic(),
                    ),
                )
            )
            for i, prompt in enumerate(prompts)
        ]
        if victim is not None:
            while (await client.stats()).output_tokens < first_tokens + 100:
                await asyncio.sleep(0.01)
            os.kill(victim, signal.SIGKILL)
        received = await asyncio.gather(*tasks)
        if victim is not None:
            down = client.domain_events[0]
            assert (down.state, down.worker_pid) == ("down", victim)
            assert down.moved_requests > 0
            assert any(len(set(one.end.domain_ids)) > 1 for one in received)
            (resumed,) = client.resumptions
            # Recomputed are what came after the last copy and what was in flight: a few tokens a request, no prompt.
            assert resumed.recomputed_tokens <= (0 if placement == "in_place" else 8 * resumed.requests)
        await client.close()
        return received

    with EngineProcess(config) as engine:
        ready = engine.wait_ready(120)
        first_tokens = len(prompts) * 48
        undisturbed = asyncio.run(run(engine, "undisturbed-", None))
        disturbed = asyncio.run(run(engine, "disturbed-", ready.domains[0].worker_pid))
        pids = [engine.pid, *(domain.worker_pid for domain in ready.domains)]
    assert all(isinstance(one.end, Finished) and one.end.reason == "length" for one in disturbed)
    assert [one.token_ids for one in disturbed] == [one.token_ids for one in undisturbed]
    assert all(map(process_is_gone, pids))
