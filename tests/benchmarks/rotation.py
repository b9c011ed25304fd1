"""Three times more requests than KV memory holds: rotated through host memory, or recomputed when they give way.

    python tests/benchmarks/rotation.py [--requests 24] [--prompt 512] [--outputs 96] [--policy NAME] [--rounds 3]

The model of failover.py on one worker. Each round runs both ways one after the other, and once all requests in memory
that holds them, whose tokens are the right ones. Prints tokens/s of each, the median ratio, and ends with 1 where a
token is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from failover import MODEL, Seen, follow, write_profile

from superinfer.executor.client import EngineClient
from superinfer.executor.config import EngineConfig
from superinfer.executor.launch import EngineProcess
from superinfer.scheduler.config import SchedulerConfig
from superinfer.scheduler.request import Request, SamplingParams

BLOCK_SIZE = 16
KV_BYTES_PER_TOKEN = 2 * 30 * 3 * 64 * 4


async def measure(config: EngineConfig, requests: int, prompt: int, outputs: int) -> tuple[float, list[list[int]]]:
    """Tokens/s from the first request to the last token, and every request's tokens."""
    draw = random.Random(2)
    prompts = [[draw.randrange(3, 1024) for _ in range(prompt)] for _ in range(requests)]
    with EngineProcess(config) as engine:
        await asyncio.to_thread(engine.wait_ready, 120)
        client = EngineClient(engine.endpoint, engine_alive=engine.is_alive)
        await client.connect(60)
        started_s = time.monotonic()
        seen = [Seen() for _ in prompts]
        await asyncio.gather(
            *(
                follow(
                    client,
                    Request(
                        request_id=f"r{number}",
                        contract_id="",
                        prompt_token_ids=tokens,
                        sampling=SamplingParams(max_tokens=outputs, temperature=0.0, ignore_eos=True),
                        arrival_s=started_s,
                    ),
                    seen[number],
                )
                for number, tokens in enumerate(prompts)
            )
        )
        spent_s = time.monotonic() - started_s
        await client.close()
    return sum(len(one.tokens) for one in seen) / spent_s, [one.tokens for one in seen]


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--requests", type=int, default=24)
    arguments.add_argument("--prompt", type=int, default=512)
    arguments.add_argument("--outputs", type=int, default=96)
    arguments.add_argument("--policy", default="age_rotation")
    arguments.add_argument("--rounds", type=int, default=3)
    options = arguments.parse_args()
    sequence_blocks = -(-(options.prompt + options.outputs) // BLOCK_SIZE)
    held = options.requests // 3 * sequence_blocks
    host = options.requests * sequence_blocks
    rates: dict[str, list[float]] = {"rotated": [], "recomputed": [], "held": []}
    right = True
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps(MODEL))
        profile = write_profile(Path(directory) / "profile.json", 0.05)
        for _ in range(options.rounds):
            tokens = {}
            for name, blocks, host_blocks in (
                ("held", 3 * held, 0),
                ("rotated", held, host),
                ("recomputed", held, 0),
            ):
                config = EngineConfig(
                    model_dir=directory,
                    profile_path=str(profile),
                    dtype="float32",
                    random_weights=True,
                    kv_cache_bytes=blocks * BLOCK_SIZE * KV_BYTES_PER_TOKEN,
                    scheduler=SchedulerConfig(
                        policy=options.policy,
                        max_model_len=options.prompt + options.outputs,
                        block_size=BLOCK_SIZE,
                        host_blocks=host_blocks,
                    ),
                )
                rate, tokens[name] = asyncio.run(measure(config, options.requests, options.prompt, options.outputs))
                rates[name].append(rate)
                print(name, round(rate, 1), "tokens/s", file=sys.stderr, flush=True)
            right = right and tokens["rotated"] == tokens["recomputed"] == tokens["held"]
    ratios = [a / b for a, b in zip(rates["rotated"], rates["recomputed"], strict=True)]
    print(
        json.dumps(
            {
                "policy": options.policy,
                "tokens_per_s": {name: round(statistics.median(found), 1) for name, found in rates.items()},
                "rotated_over_recomputed": round(statistics.median(ratios), 2),
                "tokens_right": right,
            }
        )
    )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
