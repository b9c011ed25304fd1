"""Three times more best-effort work than KV memory holds, pushed out again and again: rotated through host memory, or
recomputed when it gives way.

    python tests/benchmarks/rotation.py [--load bursts|turns] [--requests 9] [--rounds 3] [--model NAME]

"bursts" is what rotation is for: requests of 1,000 to 2,000 tokens without bounds fill the memory, and bursts of short
requests under a contract take their places (policy slack). In "turns" equals take each other's (age_rotation). Each
round runs the same requests both ways one after the other, and once in memory that holds them all, whose tokens are
the right ones. Prints output tokens/s of each, how often a sequence gave way, and the median ratio; ends with 1 where
a token is wrong or a request is lost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from failover import Seen, follow

from superinfer.cli.console import err
from superinfer.cli.profile import ensure_profile
from superinfer.contracts.contract import Bound, SLOContract
from superinfer.executor.client import EngineClient
from superinfer.executor.config import EngineConfig
from superinfer.executor.launch import EngineProcess
from superinfer.executor.models.catalog import resolve_model
from superinfer.profiler.store import load_profile
from superinfer.scheduler.config import SchedulerConfig
from superinfer.scheduler.request import Request, SamplingParams

BLOCK_SIZE = 16
BURSTS = SLOContract(service_id="bursts", latency=(Bound(percentile=0.99, bound_ms=15_000.0),))


@dataclass(frozen=True)
class Arrival:
    """One request of the load."""

    at_s: float
    contract_id: str
    prompt: list[int]
    outputs: int

    @property
    def blocks(self) -> int:
        """KV blocks that it has in the end."""
        return -(-(len(self.prompt) + self.outputs) // BLOCK_SIZE)


def make_load(options: argparse.Namespace) -> list[Arrival]:
    """Long requests all at once; in "bursts" then short ones, a few at a time."""
    draw = random.Random(2)

    def prompt(length: int) -> list[int]:
        return [draw.randrange(100, 40_000) for _ in range(length)]

    shortest = options.longest // 2
    load = [
        Arrival(0.0, "", prompt(draw.randint(shortest, options.longest)), options.outputs)
        for _ in range(options.requests)
    ]
    if options.load == "bursts":
        for burst in range(options.bursts):
            at_s = (burst + 2) * options.every_s
            load += [Arrival(at_s, "bursts", prompt(options.burst_prompt), 16) for _ in range(options.burst_size)]
    return load


async def measure(config: EngineConfig, load: list[Arrival]) -> tuple[dict[str, float], list[list[int]]]:
    """Figures from the first request to the last token, and every request's tokens."""
    with EngineProcess(config) as engine:
        await asyncio.to_thread(engine.wait_ready, 120)
        client = EngineClient(engine.endpoint, engine_alive=engine.is_alive)
        await client.connect(60)
        started_s = time.monotonic()
        seen = [Seen() for _ in load]

        async def one(number: int, arrival: Arrival) -> None:
            await asyncio.sleep(started_s + arrival.at_s - time.monotonic())
            sampling = SamplingParams(max_tokens=arrival.outputs, temperature=0.0, ignore_eos=True)
            request = Request(
                request_id=f"r{number}",
                contract_id=arrival.contract_id,
                prompt_token_ids=arrival.prompt,
                sampling=sampling,
                arrival_s=time.monotonic(),
            )
            await follow(client, request, seen[number])

        await asyncio.gather(*(one(number, arrival) for number, arrival in enumerate(load)))
        spent_s = time.monotonic() - started_s
        stats = await client.stats()
        await client.close()
    late_s = [each.times_s[-1] - started_s - arrival.at_s for each, arrival in zip(seen, load, strict=True)]
    contracted = [late for late, arrival in zip(late_s, load, strict=True) if arrival.contract_id]
    return {
        "tokens_per_s": sum(len(one.tokens) for one in seen) / spent_s,
        "seconds": spent_s,
        "rotations": stats.rotations,
        "recomputations": stats.recomputations,
        "contracted_worst_s": max(contracted, default=0.0),
    }, [one.tokens for one in seen]


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", default="smollm2-135m-instruct")
    arguments.add_argument("--load", choices=("bursts", "turns"), default="bursts")
    arguments.add_argument("--policy", help="slack for bursts, age_rotation for turns")
    arguments.add_argument("--requests", type=int, default=9)
    arguments.add_argument("--longest", type=int, default=2000, help="longest prompt, twice the shortest")
    arguments.add_argument("--outputs", type=int, default=400)
    arguments.add_argument("--bursts", type=int, default=16)
    arguments.add_argument("--burst-size", type=int, default=4)
    arguments.add_argument("--burst-prompt", type=int, default=256)
    arguments.add_argument("--every-s", type=float, default=8.0)
    arguments.add_argument("--rounds", type=int, default=3)
    options = arguments.parse_args()
    policy = options.policy or ("slack" if options.load == "bursts" else "age_rotation")
    source = resolve_model(options.model)
    profile_path = ensure_profile(source, "auto", random_weights=False, console=err)
    memory = load_profile(profile_path).static.memory
    load = make_load(options)
    work = sum(arrival.blocks for arrival in load if not arrival.contract_id)
    everything = sum(arrival.blocks for arrival in load)
    found: dict[str, list[dict[str, float]]] = {"held": [], "rotated": [], "recomputed": []}
    right = True
    for _ in range(options.rounds):
        tokens = {}
        for name, blocks, host_blocks in (
            ("held", everything, 0),
            ("rotated", work // 3, work),
            ("recomputed", work // 3, 0),
        ):
            config = EngineConfig(
                model_dir=str(source.directory),
                profile_path=str(profile_path),
                kv_cache_bytes=blocks * BLOCK_SIZE * memory.kv_bytes_per_token,
                contracts=[BURSTS],
                scheduler=SchedulerConfig(
                    policy=policy,
                    max_model_len=options.longest + options.outputs,
                    block_size=BLOCK_SIZE,
                    host_blocks=host_blocks,
                ),
            )
            figures, tokens[name] = asyncio.run(measure(config, load))
            found[name].append(figures)
            print(name, {key: round(value, 1) for key, value in figures.items()}, file=sys.stderr, flush=True)
        complete = all(len(got) == arrival.outputs for got, arrival in zip(tokens["held"], load, strict=True))
        right = right and complete and tokens["rotated"] == tokens["recomputed"] == tokens["held"]
    ratios = [a["tokens_per_s"] / b["tokens_per_s"] for a, b in zip(found["rotated"], found["recomputed"], strict=True)]
    medians = {
        name: {key: round(statistics.median(each[key] for each in rounds), 2) for key in rounds[0]}
        for name, rounds in found.items()
    }
    report = {
        "load": options.load,
        "policy": policy,
        **medians,
        "rotated_over_recomputed": round(statistics.median(ratios), 2),
        "tokens_right": right,
    }
    print(json.dumps(report, indent=2))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
