"""What it costs an undisturbed run that computed KV outlives its worker: the same work in short turns, side by side.

    python tests/benchmarks/mirror_cost.py [--model NAME] [--turns 30] [--requests 16] [--output 48] [--json]

Three engines with a worker each are up at once, and all but one always idle: with the KV cache in the worker's own
memory, which ends with it; in memory that outlives it, where nothing is copied; and as an accelerator does it, copying
what has changed to the host pool at every interval. They do the same requests in turns of seconds, in another order
each time, so that a machine's drift meets all alike. Printed are medians over the turns of the ratio to the first one
in the same turn, with a bootstrap interval of 95 %: of tokens/s, and of the CPU seconds of worker and engine for a
token, which other tenants of the machine disturb less. A warm turn goes before.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

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
RESAMPLES = 10_000


def cpu_s(pid: int) -> float:
    """Seconds that all threads of a process have been on a core, to the nanosecond."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text(encoding="ascii").split()[0]) for task in tasks) / 1e9


@dataclass
class Case:
    """One engine, up and idle between its turns."""

    engine: EngineProcess
    pids: list[int]

    def turn(self, options: argparse.Namespace) -> tuple[float, float]:
        """(tokens/s, CPU seconds of engine and worker a token) of one turn."""
        before = sum(map(cpu_s, self.pids))
        figures = asyncio.run(saturate(self.engine, options.requests, options.prompt, options.output))
        tokens = options.requests * (options.prompt + options.output)
        return figures["tokens_per_s"], (sum(map(cpu_s, self.pids)) - before) / tokens


def paired(values: list[float], base: list[float]) -> dict[str, float]:
    """Median of the ratios, and the bounds of its bootstrap interval."""
    ratios = np.array(values) / np.array(base)
    drawn = np.random.default_rng(0).choice(ratios, (RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return {"median": round(float(np.median(ratios)), 4), "low": round(float(low), 4), "high": round(float(high), 4)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--policy", default="slack")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--output", type=int, default=48)
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--save-interval-ms", type=float, default=50.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    source = resolve_model(options.model)
    profile = str(ensure_profile(source, "auto", random_weights=False, console=err))
    length = options.prompt + options.output
    host_blocks = options.requests * -(-length // BLOCK_SIZE)
    checkpoints = {
        OWN: (Checkpoint(enabled=False), 0),
        IN_PLACE: (Checkpoint(), 0),
        COPIES: (Checkpoint(placement="copy", save_interval_ms=options.save_interval_ms), host_blocks),
    }
    rates: dict[str, list[float]] = {name: [] for name in checkpoints}
    costs: dict[str, list[float]] = {name: [] for name in checkpoints}
    with contextlib.ExitStack() as stack:
        cases = {}
        for name, (checkpoint, host) in checkpoints.items():
            config = EngineConfig(
                model_dir=str(source.directory),
                profile_path=profile,
                kv_cache_bytes=256 * 2**20,
                checkpoint=checkpoint,
                scheduler=SchedulerConfig(
                    policy=options.policy, max_model_len=length, block_size=BLOCK_SIZE, host_blocks=host
                ),
            )
            engine = stack.enter_context(EngineProcess(config))
            cases[name] = Case(engine, [engine.pid, engine.wait_ready(120).domains[0].worker_pid])
            cases[name].turn(options)
        names = list(cases)
        for number in range(options.turns):
            order = names[number % 3 :] + names[: number % 3]
            for name in order if number % 2 else order[::-1]:
                rate, cost = cases[name].turn(options)
                rates[name].append(rate)
                costs[name].append(cost)
    found = {
        name: {
            "tokens_per_s": round(float(np.median(rates[name])), 1),
            "cpu_ms_per_token": round(1e3 * float(np.median(costs[name])), 4),
            "rate_ratio": paired(rates[name], rates[OWN]),
            "cpu_ratio": paired(costs[name], costs[OWN]),
        }
        for name in cases
    }
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    for name, figures in found.items():
        rate, cpu = (
            f"{ratio['median']:.4f} × ({ratio['low']:.4f}–{ratio['high']:.4f})"
            for ratio in (figures["rate_ratio"], figures["cpu_ratio"])
        )
        print(
            f"{name:32} {figures['tokens_per_s']:8.1f} tokens/s {rate}  {figures['cpu_ms_per_token']:.3f} ms CPU {cpu}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
