"""Seconds from the start of a worker process to its first token: with nothing kept, then with packed weights kept.

    python tests/benchmarks/worker_start.py [--model NAME] [--repeats 3] [--json]

Compiled kernels are kept in both cases (they are compiled once for a CPU, by the first start of all).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time

from superinfer.executor.config import WorkerConfig
from superinfer.executor.cores import assign_cores
from superinfer.executor.kept_files import clean
from superinfer.executor.models.catalog import resolve_model
from superinfer.executor.worker_process import WorkerProcess
from superinfer.scheduler.request import SamplingParams
from superinfer.scheduler.steps import NewSequence, SequenceStep, StepPlan


def start_to_first_token(config: WorkerConfig) -> tuple[float, float]:
    """(seconds until the worker is ready, seconds until its first token)."""
    started = time.perf_counter()
    with WorkerProcess(config) as worker:
        worker.wait_ready()
        ready = time.perf_counter()
        params = SamplingParams(max_tokens=1, temperature=0.0)
        prompt = list(range(10, 26))
        worker.execute(
            StepPlan(
                domain_id=config.domain_id,
                step_id=0,
                new_sequences=[
                    NewSequence(sequence_id=0, token_ids=prompt, prompt_length=len(prompt), sampling=params)
                ],
                sequences=[SequenceStep(sequence_id=0, start=0, count=len(prompt), new_blocks=[0])],
            )
        )
        return ready - started, time.perf_counter() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    config = WorkerConfig(
        domain_id="0",
        model_dir=str(resolve_model(options.model).directory),
        cores=assign_cores(1, sorted(os.sched_getaffinity(0)))[0][0],
    )
    start_to_first_token(config)  # kernels are compiled, files in memory
    found: dict[str, dict[str, float]] = {}
    for case in ("weights packed at the start", "packed weights kept"):
        times = []
        for _ in range(options.repeats):
            if case.startswith("weights packed"):
                clean(("weights",))
            times.append(start_to_first_token(config))
        ready, first = zip(*times, strict=True)
        found[case] = {"ready_s": statistics.median(ready), "first_token_s": statistics.median(first)}
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        for case, figures in found.items():
            print(f"{case:30} ready {figures['ready_s']:.2f} s, first token {figures['first_token_s']:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
