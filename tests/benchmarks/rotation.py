"""Three times more best-effort work than KV memory holds, pushed out again and again: rotated through host memory, or
recomputed when it gives way.

    python tests/benchmarks/rotation.py [--load long|bursts|turns] [--rounds 3] [--model NAME] [--prefix-cache]

"long" is the load that rotation is for, and where servers that recompute suffer most: requests whose context takes a
device's whole KV memory (a long document on a small card), while short requests under a contract keep coming, a few at
a time. A burst needs less than a fifth of the memory and pushes out all of it; who recomputes spends the time until the
next burst on prefilling once more what was there before. Bursts come every 1.1 times as long as a long prefill was just
measured to take, and for as long as the long requests need one after the other. So the ratio stays below two on any
device: at worst nothing gets done until the bursts end. In "bursts" nine requests of 1,000 to 2,000 tokens meet bursts
as large as one of them; most stay, and little is computed again. In "turns" equals take each other's places
(age_rotation).

Each round runs the same requests both ways one after the other, and once in memory that holds them all, whose tokens
are the right ones and whose speed is the ceiling. Prints output tokens/s of each, how often a sequence gave way, the
bursts' longest time, and the median ratios; ends with 1 where a token is wrong or a request is lost. `--prefix-cache`
lets whoever recomputes find again what is left of its blocks.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from failover import Seen, follow

from superinfer.cli.console import err
from superinfer.cli.profile import ensure_profile
from superinfer.contracts.contract import Bound, SLOContract
from superinfer.executor.client import EngineClient
from superinfer.executor.config import DType, EngineConfig
from superinfer.executor.launch import EngineProcess
from superinfer.executor.models.catalog import resolve_model
from superinfer.profiler.store import load_profile
from superinfer.scheduler.config import SchedulerConfig
from superinfer.scheduler.request import Request, SamplingParams

DTYPE: DType = "float32"
"""In which a token does not depend on what it is batched with."""
BLOCK_SIZE = 16
CALIBRATIONS = 2
"""Runs of a long request alone, of which the fastest counts."""

BURSTS_SHARE = 1.25
"""How long bursts come, as a share of the time that the long requests take without them."""


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


@dataclass(frozen=True)
class Load:
    """Long requests without bounds, all at once, and bursts of short ones under a contract."""

    requests: int
    prompts: tuple[int, int]
    outputs: int
    bursts: int = 0
    burst_size: int = 0
    burst_prompt: int = 0
    burst_outputs: int = 16
    every_s: float = 0.0
    first_s: float = 0.0
    bound_s: float = 15.0
    policy: str = "slack"

    @property
    def contract(self) -> SLOContract:
        """That of the bursts."""
        return SLOContract(service_id="bursts", latency=(Bound(percentile=0.99, bound_ms=1e3 * self.bound_s),))

    def arrivals(self) -> list[Arrival]:
        """The same ones every time."""
        draw = random.Random(2)

        def prompt(length: int) -> list[int]:
            return [draw.randrange(100, 40_000) for _ in range(length)]

        load = [Arrival(0.0, "", prompt(draw.randint(*self.prompts)), self.outputs) for _ in range(self.requests)]
        for burst in range(self.bursts):
            at_s = self.first_s + burst * self.every_s
            load += [
                Arrival(at_s, "bursts", prompt(self.burst_prompt), self.burst_outputs) for _ in range(self.burst_size)
            ]
        return load


LONG = Load(3, (1700, 1700), 300)


def long_load(prefill_s: float, decode_s: float) -> Load:
    """LONG among bursts, where its prefill takes so long alone, and each of its tokens."""
    every_s = 1.1 * prefill_s
    alone_s = LONG.requests * (prefill_s + LONG.outputs * decode_s)
    return replace(
        LONG,
        bursts=round(BURSTS_SHARE * alone_s / every_s),
        burst_size=4,
        burst_prompt=64,
        burst_outputs=8,
        every_s=every_s,
        first_s=every_s,
        bound_s=5.0 * prefill_s,
    )


LOADS = {
    "long": LONG,
    "bursts": Load(9, (1000, 2000), 400, bursts=16, burst_size=4, burst_prompt=256, every_s=8.0, first_s=16.0),
    "turns": Load(9, (1000, 2000), 400, policy="age_rotation"),
}


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
        "first_token_s": min(each.times_s[0] for each in seen) - started_s,
        "rotations": stats.rotations,
        "recomputations": stats.recomputations,
        "contracted_worst_s": max(contracted, default=0.0),
    }, [one.tokens for one in seen]


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", default="smollm2-135m-instruct")
    arguments.add_argument("--load", choices=("long", "bursts", "turns"), default="long")
    arguments.add_argument("--policy", help="slack, age_rotation for turns")
    arguments.add_argument("--prefix-cache", action="store_true")
    arguments.add_argument("--rounds", type=int, default=3)
    options = arguments.parse_args()
    source = resolve_model(options.model)
    profile_path = ensure_profile(source, DTYPE, random_weights=False, console=err)
    profile = load_profile(profile_path)
    bytes_per_block = BLOCK_SIZE * profile.static.memory.kv_bytes_per_token

    def config(load: Load, blocks: int, host_blocks: int) -> EngineConfig:
        return EngineConfig(
            model_dir=str(source.directory),
            profile_path=str(profile_path),
            dtype=DTYPE,
            kv_cache_bytes=blocks * bytes_per_block,
            contracts=[load.contract],
            scheduler=SchedulerConfig(
                policy=options.policy or load.policy,
                max_model_len=load.prompts[1] + load.outputs,
                block_size=BLOCK_SIZE,
                host_blocks=host_blocks,
                prefix_cache=options.prefix_cache,
            ),
        )

    found: dict[str, list[dict[str, float]]] = {"held": [], "rotated": [], "recomputed": []}
    right = True
    for _ in range(options.rounds):
        load = LOADS[options.load]
        if load is LONG:
            alone = load.arrivals()[:1]
            tries = [asyncio.run(measure(config(load, alone[0].blocks, 0), alone))[0] for _ in range(CALIBRATIONS)]
            prefill_s = min(each["first_token_s"] for each in tries)
            decodes_s = min(each["seconds"] - each["first_token_s"] for each in tries)
            load = long_load(prefill_s, decodes_s / (load.outputs - 1))
            print(load, file=sys.stderr, flush=True)
        arrivals = load.arrivals()
        work = sum(arrival.blocks for arrival in arrivals if not arrival.contract_id)
        everything = sum(arrival.blocks for arrival in arrivals)
        tokens = {}
        for name, blocks, host_blocks in (
            ("held", everything, 0),
            ("rotated", work // 3, work),
            ("recomputed", work // 3, 0),
        ):
            figures, tokens[name] = asyncio.run(measure(config(load, blocks, host_blocks), arrivals))
            found[name].append(figures)
            print(name, {key: round(value, 2) for key, value in figures.items()}, file=sys.stderr, flush=True)
        complete = all(len(got) == arrival.outputs for got, arrival in zip(tokens["held"], arrivals, strict=True))
        right = right and complete and tokens["rotated"] == tokens["recomputed"] == tokens["held"]

    def over_recomputed(case: str) -> float:
        pairs = zip(found[case], found["recomputed"], strict=True)
        return round(statistics.median(a["tokens_per_s"] / b["tokens_per_s"] for a, b in pairs), 2)

    medians = {
        name: {key: round(statistics.median(each[key] for each in rounds), 2) for key in rounds[0]}
        for name, rounds in found.items()
    }
    report = {
        "load": options.load,
        "policy": options.policy or LOADS[options.load].policy,
        **medians,
        "rotated_over_recomputed": over_recomputed("rotated"),
        "held_over_recomputed": over_recomputed("held"),
        "tokens_right": right,
    }
    print(json.dumps(report, indent=2))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
