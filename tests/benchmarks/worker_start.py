"""Seconds from the start of a worker to its first token: from scratch, with its fork server, and again after a death.

    python tests/benchmarks/worker_start.py [--model NAME] [--repeats 3] [--json]

"fork server and worker" is the first start of an engine, "another worker" each further one and each restart. Compiled
kernels are kept in all cases (they are compiled once for a CPU, by the first start of all).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator

from superinfer.executor.config import WorkerConfig
from superinfer.executor.cores import assign_cores
from superinfer.executor.kept_files import clean
from superinfer.executor.models.catalog import resolve_model
from superinfer.executor.worker import DEFAULT_RUNNER
from superinfer.executor.worker_forks import ForkServer
from superinfer.executor.worker_process import WorkerProcess
from superinfer.scheduler.request import SamplingParams
from superinfer.scheduler.steps import NewSequence, SequenceStep, StepPlan


def start_to_first_token(config: WorkerConfig, forks: ForkServer | None = None) -> tuple[float, float]:
    """(seconds until the worker is ready, seconds until its first token)."""
    started = time.perf_counter()
    with WorkerProcess(config, forks=forks) as worker:
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


@contextlib.contextmanager
def fork_server(config: WorkerConfig) -> Iterator[ForkServer]:
    forks = ForkServer(DEFAULT_RUNNER, [config])
    try:
        yield forks
    finally:
        forks.close()


def measure(case: str, config: WorkerConfig) -> tuple[float, float]:
    """One start of the kind."""
    match case:
        case "from scratch, weights packed":
            clean(("weights",))
            return start_to_first_token(config)
        case "from scratch":
            return start_to_first_token(config)
        case "fork server and worker":
            with fork_server(config) as forks:
                return start_to_first_token(config, forks)
        case _:
            with fork_server(config) as forks:
                start_to_first_token(config, forks)
                return start_to_first_token(config, forks)


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
    cases = ("from scratch, weights packed", "from scratch", "fork server and worker", "another worker")
    times: dict[str, list[tuple[float, float]]] = {case: [] for case in cases}
    for _ in range(options.repeats):
        for case in cases:
            times[case].append(measure(case, config))
            print(case, times[case][-1], file=sys.stderr, flush=True)
    found = {}
    for case, figures in times.items():
        ready, first = zip(*figures, strict=True)
        found[case] = {"ready_s": statistics.median(ready), "first_token_s": statistics.median(first)}
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        for case, medians in found.items():
            print(f"{case:30} ready {medians['ready_s']:.2f} s, first token {medians['first_token_s']:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
