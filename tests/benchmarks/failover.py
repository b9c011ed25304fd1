"""Failover under load: every request runs on one of two workers, which is killed; then on the other, and so on.

    python tests/benchmarks/failover.py [--kills 50] [--requests 8] [--recompute-kills 1]

A random model whose KV has the shape of SmolLM2-135M's (30 layers, 3 heads of 64) and whose other layers are narrow, so
that long contexts are soon there. Prints, for memory that outlives the workers and for recomputation: from the death
noticed to the start of the first step that holds the moved requests (median, p99), tokens recomputed in it, the longest
silence that a client sees, and how long the dead worker's place was empty. An undisturbed run then makes as many tokens
of the same requests as the first of these, and tokens are compared as far as both go. Ends with 1 where one differs, is
lost or doubled.

Prompts are prefilled once in each of the three runs, and decoding goes on from kill to kill: 50 kills take about as
long as two prefills.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "executor" / "support"))

from engine_harness import write_profile

from superinfer.executor.client import EngineClient
from superinfer.executor.config import Checkpoint, EngineConfig
from superinfer.executor.launch import EngineProcess
from superinfer.executor.messages import Finished, Tokens
from superinfer.scheduler.config import SchedulerConfig
from superinfer.scheduler.fault_map import EVERY_OTHER, HomeAndBackup
from superinfer.scheduler.request import Request, SamplingParams

MODEL = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1024,
    "hidden_size": 192,
    "intermediate_size": 384,
    "num_hidden_layers": 30,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "max_position_embeddings": 32768,
    "initializer_range": 0.1,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}
MAX_LEN = 16384
OUTLIVES, UNDISTURBED = "kv outlives the worker", "undisturbed"
# All on the first worker while it is up, all on the other one while it is down.
ALL_TOGETHER = {EVERY_OTHER: HomeAndBackup(("0",))}


@dataclass
class Seen:
    """What a client has of one request."""

    tokens: list[int] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    end: str = ""
    lost: int = 0
    doubled: int = 0

    def gap_s(self, since_s: float) -> float:
        """The longest silence that ended after `since_s`."""
        gaps = [b - a for a, b in zip(self.times_s, self.times_s[1:], strict=False) if b > since_s]
        return max(gaps, default=0.0)


async def follow(client: EngineClient, request: Request, seen: Seen) -> None:
    async for event in await client.submit(request):
        if isinstance(event, Tokens):
            seen.lost += max(event.first_index - len(seen.tokens), 0)
            seen.doubled += max(len(seen.tokens) - event.first_index, 0)
            seen.tokens += event.token_ids
            seen.times_s += [time.monotonic()] * len(event.token_ids)
        elif isinstance(event, Finished):
            seen.end = event.error or event.reason


async def measure(
    config: EngineConfig, lengths: list[int], kills: int, tokens: int = 0
) -> tuple[dict[str, object], list[Seen]]:
    """Run the requests until so many kills have been survived, and each has so many tokens at least."""
    with EngineProcess(config) as engine:
        ready = await asyncio.to_thread(engine.wait_ready, 120)
        client = EngineClient(engine.endpoint, engine_alive=engine.is_alive)
        await client.connect(60)
        pids = {domain.domain_id: domain.worker_pid for domain in ready.domains}
        draw = random.Random(1)
        seen = [Seen() for _ in lengths]
        tasks = []
        for number, length in enumerate(lengths):
            prompt = [draw.randrange(3, 1024) for _ in range(length)]
            sampling = SamplingParams(max_tokens=MAX_LEN - 1 - length, temperature=0.0, ignore_eos=True)
            request = Request(
                request_id=f"r{number}",
                contract_id="",
                prompt_token_ids=prompt,
                sampling=sampling,
                arrival_s=time.monotonic(),
            )
            tasks.append(asyncio.create_task(follow(client, request, seen[number])))

        async def until_all_have(count: int) -> None:
            target = [len(one.tokens) + count for one in seen]
            while any(len(one.tokens) < wanted for one, wanted in zip(seen, target, strict=True)):
                await asyncio.sleep(0.02)
                assert not (ends := {one.end for one in seen if one.end}), (
                    f"a request ended: {ends}, {client.domain_events}"
                )

        await until_all_have(5)
        gaps_ms, empty_s, started_s = [], [], time.monotonic()
        for kill in range(kills):
            victim = str(kill % 2)
            downs = len(client.domain_events)
            killed_s = time.monotonic()
            os.kill(pids[victim], signal.SIGKILL)
            await until_all_have(3)
            gaps_ms.append(max(one.gap_s(killed_s) for one in seen) * 1e3)
            resumed = client.resumptions[-1] if client.resumptions else None
            print(f"kill {kill + 1}: gap {gaps_ms[-1]:.0f} ms, {resumed}", file=sys.stderr, flush=True)
            while not any(event.state == "up" for event in client.domain_events[downs:]):
                await asyncio.sleep(0.02)
            pids[victim] = client.domain_events[-1].worker_pid
            down, *_, up = client.domain_events[downs:]
            empty_s.append(up.time_s - down.time_s)
        while any(len(one.tokens) < tokens for one in seen):
            await until_all_have(1)
        resumptions = client.resumptions
        await client.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    delays_ms = [(one.started_s - one.noticed_s) * 1e3 for one in resumptions[:kills]]
    return {
        "kills": kills,
        "seconds": round(time.monotonic() - started_s, 1),
        "moved_in_first_step": sorted({one.requests for one in resumptions}),
        "recomputed_tokens_in_first_step": sorted({one.recomputed_tokens for one in resumptions})[-3:],
        "resumed_after_ms_median": round(float(np.median(delays_ms)), 2) if delays_ms else None,
        "resumed_after_ms_p99": round(float(np.quantile(delays_ms, 0.99)), 2) if delays_ms else None,
        "longest_gap_ms_median": round(float(np.median(gaps_ms)), 1) if gaps_ms else None,
        "longest_gap_ms_max": round(max(gaps_ms), 1) if gaps_ms else None,
        "worker_back_after_s_median": round(float(np.median(empty_s)), 2) if empty_s else None,
        "tokens": sum(len(one.tokens) for one in seen),
        "tokens_lost": sum(one.lost for one in seen),
        "tokens_doubled": sum(one.doubled for one in seen),
    }, seen


def equal_as_far_as_both_go(one: list[Seen], other: list[Seen]) -> bool:
    """Whether each request has the same tokens in both runs, up to the end of the shorter."""
    return all(
        a.tokens[: len(b.tokens)] == b.tokens[: len(a.tokens)] and a.tokens for a, b in zip(one, other, strict=True)
    )


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--kills", type=int, default=50)
    arguments.add_argument("--requests", type=int, default=8)
    arguments.add_argument("--recompute-kills", type=int, default=1)
    arguments.add_argument("--no-reference", action="store_true", help="no undisturbed run to compare tokens with")
    arguments.add_argument("--longest", type=int, default=8000, help="longest context, twice the shortest")
    arguments.add_argument(
        "--dtype",
        default="float32",
        choices=("bfloat16", "float32"),
        help="float32: a token does not depend on what it is batched with; bfloat16 on CPUs that multiply it: it may",
    )
    options = arguments.parse_args()
    lengths = [int(length) for length in np.linspace(options.longest // 2, options.longest, options.requests)]
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps(MODEL))
        profile = write_profile(Path(directory) / "profile.json", 0.05)
        report: dict[str, object] = {"context_tokens": lengths}
        runs: dict[str, list[Seen]] = {}
        for name, enabled, kills in (
            (OUTLIVES, True, options.kills),
            ("recomputed", False, options.recompute_kills),
            (UNDISTURBED, True, 0),
        ):
            config = EngineConfig(
                model_dir=directory,
                profile_path=str(profile),
                domains=2,
                dtype=options.dtype,
                random_weights=True,
                kv_cache_bytes=3 << 30,
                checkpoint=Checkpoint(enabled=enabled),
                scheduler=SchedulerConfig(
                    policy="fcfs", max_model_len=MAX_LEN, max_step_tokens=512, fault_domains=ALL_TOGETHER
                ),
            )
            if kills or (name == UNDISTURBED and not options.no_reference):
                tokens = 0 if kills else max(len(one.tokens) for one in next(iter(runs.values())))
                report[name], runs[name] = asyncio.run(measure(config, lengths, kills, tokens))
                print(name, json.dumps(report[name]), file=sys.stderr, flush=True)
    whole = not any(one.lost or one.doubled for seen in runs.values() for one in seen)
    if not options.no_reference:
        right = runs.pop(UNDISTURBED)
        report["tokens_equal"] = all(equal_as_far_as_both_go(right, seen) for seen in runs.values())
    print(json.dumps(report, indent=2))
    return 0 if whole and report.get("tokens_equal", True) else 1


if __name__ == "__main__":
    sys.exit(main())
