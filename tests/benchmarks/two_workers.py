"""Tokens/s at saturation of an engine with two workers against one, through the engine's own client.

    python tests/benchmarks/two_workers.py [--model NAME] [--requests 48] [--rounds 3] [--json]

Scheduler, client and workers run as in serving, and take their time from the same cores. Rounds alternate between one
worker and two; figures are medians. Beside them the CPU seconds that the engine process and this client took for a
second of the run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
import zlib

import psutil

from superinfer.cli.console import err
from superinfer.cli.profile import ensure_profile
from superinfer.executor.client import EngineClient
from superinfer.executor.config import EngineConfig
from superinfer.executor.launch import EngineProcess
from superinfer.executor.messages import Tokens
from superinfer.executor.models.catalog import resolve_model
from superinfer.scheduler.config import SchedulerConfig
from superinfer.scheduler.request import Request, SamplingParams


def cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


async def saturate(engine: EngineProcess, requests: int, prompt: int, output: int) -> dict[str, float]:
    """Everything at once, until all is done: prompt and output tokens/s, and what engine and client took of the CPU."""
    client = EngineClient(engine.endpoint, engine_alive=engine.is_alive)
    await client.connect()

    async def one(name: str, tokens: int) -> int:
        request = Request(
            request_id=name,
            contract_id="",
            prompt_token_ids=[(13 * i + zlib.crc32(name.encode())) % 1000 + 10 for i in range(prompt)],
            sampling=SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True),
            arrival_s=time.monotonic(),
        )
        events = await client.submit(request)
        return sum([len(event.token_ids) async for event in events if isinstance(event, Tokens)])

    try:
        await asyncio.gather(*(one(f"warm-{i}", 4) for i in range(4)))
        before, started = cpu_s(engine.pid), time.monotonic()
        own = time.process_time()
        got = sum(await asyncio.gather(*(one(f"r{i}", output) for i in range(requests))))
        lasted = time.monotonic() - started
        return {
            "output_tokens_per_s": got / lasted,
            "tokens_per_s": (got + requests * prompt) / lasted,
            "engine_cpu_share": (cpu_s(engine.pid) - before) / lasted,
            "client_cpu_share": (time.process_time() - own) / lasted,
        }
    finally:
        await client.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--policy", default="slack")
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--prompt", type=int, default=48)
    parser.add_argument("--output", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    source = resolve_model(options.model)
    profile = str(ensure_profile(source, "auto", random_weights=False, console=err))
    found: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    for _ in range(options.rounds):
        for domains, figures in found.items():
            config = EngineConfig(
                model_dir=str(source.directory),
                profile_path=profile,
                domains=domains,
                kv_cache_bytes=512 * 2**20,
                scheduler=SchedulerConfig(policy=options.policy, max_model_len=512),
            )
            with EngineProcess(config) as engine:
                engine.wait_ready(120)
                figures.append(
                    asyncio.run(saturate(engine, options.requests * domains, options.prompt, options.output))
                )
    medians = {
        f"{domains} worker{'s' if domains > 1 else ''}": {
            name: statistics.median(each[name] for each in figures) for name in figures[0]
        }
        for domains, figures in found.items()
    }
    ratio = medians["2 workers"]["output_tokens_per_s"] / medians["1 worker"]["output_tokens_per_s"]
    if options.json:
        print(json.dumps({**medians, "ratio": ratio}, indent=2))
        return 0
    for case, f in medians.items():
        print(
            f"{case:10} {f['output_tokens_per_s']:8.1f} output tokens/s {f['tokens_per_s']:8.1f} tokens/s, "
            f"engine {100 * f['engine_cpu_share']:.1f} % and client {100 * f['client_cpu_share']:.1f} % of a core"
        )
    print(f"two against one: {ratio:.2f} ×")
    return 0


if __name__ == "__main__":
    sys.exit(main())
