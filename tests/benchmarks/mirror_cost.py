"""What it costs an undisturbed run that computed KV outlives its worker: tokens/s at saturation, side by side.

    python tests/benchmarks/mirror_cost.py [--requests 24] [--rounds 5] [--save-interval-ms 50] [--json]

One worker with its KV cache in its own memory, which ends with it; the same in memory that outlives it, where nothing
is copied; and as an accelerator does it, copying what has changed to the host pool at every interval. Rounds run all
three, beginning with another one each time; ratios are to the first of the same round, medians over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from two_workers import saturate

from superinfer.cli.console import err
from superinfer.cli.profile import ensure_profile
from superinfer.executor.config import Checkpoint, EngineConfig
from superinfer.executor.launch import EngineProcess
from superinfer.executor.models.catalog import resolve_model
from superinfer.scheduler.config import SchedulerConfig

OWN, IN_PLACE, COPIES = "own memory", "memory that outlives the worker", "copies"
BLOCK_SIZE = 16


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--policy", default="slack")
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--output", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save-interval-ms", type=float, default=50.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    source = resolve_model(options.model)
    profile = str(ensure_profile(source, "auto", random_weights=False, console=err))
    length = options.prompt + options.output
    host_blocks = options.requests * -(-length // BLOCK_SIZE)
    cases = {
        OWN: (Checkpoint(enabled=False), 0),
        IN_PLACE: (Checkpoint(), 0),
        COPIES: (Checkpoint(placement="copy", save_interval_ms=options.save_interval_ms), host_blocks),
    }
    rates: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(options.rounds):
        names = list(cases)
        for name in names[number % 3 :] + names[: number % 3]:
            checkpoint, host = cases[name]
            config = EngineConfig(
                model_dir=str(source.directory),
                profile_path=profile,
                kv_cache_bytes=512 * 2**20,
                checkpoint=checkpoint,
                scheduler=SchedulerConfig(
                    policy=options.policy, max_model_len=length, block_size=BLOCK_SIZE, host_blocks=host
                ),
            )
            with EngineProcess(config) as engine:
                engine.wait_ready(120)
                figures = asyncio.run(saturate(engine, options.requests, options.prompt, options.output))
            rates[name].append(figures["tokens_per_s"])
            print(f"{name}: {rates[name][-1]:.1f} tokens/s", file=sys.stderr, flush=True)
    found = {
        name: {
            "tokens_per_s": round(statistics.median(each), 1),
            "ratio": round(statistics.median(a / b for a, b in zip(each, rates[OWN], strict=True)), 4),
        }
        for name, each in rates.items()
    }
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    for name, figures in found.items():
        print(f"{name:34} {figures['tokens_per_s']:8.1f} tokens/s  {figures['ratio']:.3f} ×")
    return 0


if __name__ == "__main__":
    sys.exit(main())
