"""How well the latency model predicts steps that the sweep had not seen, measured after it on the same worker's core.

    python tests/benchmarks/latency_accuracy.py [MODEL] [--profile FILE] [--random-weights] [--steps 40] [--repeats 3]

Without `--profile` the model is profiled first. Held-out steps are random mixes of decodes with contexts of their own
and prefill chunks. Each is measured `--repeats` times, all once before any again. Printed are relative errors of

- the fitted constants against the median of each mix's repeats;
- the same without their common factor, which is the machine's speed now against the sweep's: what was learnt of shapes;
- the fitted constants against single steps: with all the noise of the machine;
- the model as it serves, with its online correction, against single steps in the order in which they ran;

and how many single steps stay below the upper prediction, as fitted and as it serves.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
from pathlib import Path

import numpy as np

from superinfer.executor.config import WorkerConfig
from superinfer.executor.core_wait import core_wait_s
from superinfer.executor.cores import assign_cores
from superinfer.executor.models.catalog import resolve_model
from superinfer.executor.profile_model import THREADS, profile_model
from superinfer.executor.sweep import HOST_BLOCKS, SweepRunner
from superinfer.executor.worker_process import WorkerProcess
from superinfer.profiler.store import ModelProfile, load_profile, save_profile
from superinfer.profiler.sweep_points import ALL_POINTS, PrefillChunk, SweepLimits, SweepPoint

CHUNKS = (8, 12, 16, 24, 31, 40, 64, 90, 128, 170, 220)


def random_mix(generator: random.Random, limits: SweepLimits) -> SweepPoint:
    """A step as an engine composes them: decodes, a prompt or two, or both; none of the sweep's."""
    while True:
        contexts: list[int] = []
        chunks: list[PrefillChunk] = []
        kind = generator.choice(["decode", "mixed", "mixed", "prefill"])
        if kind != "prefill":
            longest = generator.choice([60, 200, 500, 1000])
            contexts = [generator.randint(16, longest) for _ in range(generator.randint(1, 36))]
        if kind != "decode":
            room = limits.max_step_tokens - len(contexts)
            for _ in range(generator.choice([1, 1, 2])):
                count = min(generator.choice(CHUNKS), room)
                if count > 1:
                    start = generator.choice([0, 0, generator.randint(1, 700)])
                    chunks.append(PrefillChunk(count, start, generator.random() < 0.6))
                    room -= count
        point = SweepPoint(tuple(contexts), tuple(chunks))
        if (contexts or chunks) and limits.allow(point) and point not in ALL_POINTS:
            return point


def measure_mixes(
    directory: Path, vocab_size: int, *, random_weights: bool, steps: int, repeats: int, seed: int
) -> tuple[list[SweepPoint], list[tuple[SweepPoint, float]]]:
    """The mixes, and (mix, seconds) of every step in the order in which they ran."""
    config = WorkerConfig(
        domain_id="profile",
        model_dir=str(directory),
        random_weights=random_weights,
        host_blocks=HOST_BLOCKS,
        threads=THREADS,
        cores=assign_cores(1, sorted(os.sched_getaffinity(0)))[0][0],
    )
    generator = random.Random(seed)
    with WorkerProcess(config) as worker:
        ready = worker.wait_ready()
        limits = SweepLimits(config.max_step_tokens, ready.max_model_len, ready.kv_blocks, config.block_size)
        run = SweepRunner(
            worker,
            vocab_size=vocab_size,
            block_size=config.block_size,
            domain_id=config.domain_id,
            waited_s=lambda: core_wait_s(ready.pid),
        )
        mixes = [random_mix(generator, limits) for _ in range(steps)]
        for mix in mixes[:3]:
            run(mix)  # Warm up.
        found = []
        for _ in range(repeats):
            generator.shuffle(order := list(mixes))
            found += [(mix, run(mix)) for mix in order]
        return mixes, found


def report(profile: ModelProfile, mixes: list[SweepPoint], found: list[tuple[SweepPoint, float]]) -> None:
    """The table."""
    fitted, serving = profile.latency_model, profile.latency_model
    medians = [statistics.median(seconds for mix, seconds in found if mix == each) for each in mixes]
    shapes = [fitted.uncorrected_step_s(mix.shape) / median - 1 for mix, median in zip(mixes, medians, strict=True)]
    usual = 1 + statistics.median(shapes)
    without_factor = [(1 + error) / usual - 1 for error in shapes]
    single, corrected, covered, covered_serving = [], [], [], []
    for mix, seconds in found:
        single.append(fitted.uncorrected_step_s(mix.shape) / seconds - 1)
        covered.append(seconds <= fitted.upper_ratio * fitted.uncorrected_step_s(mix.shape))
        corrected.append(serving.step_s(mix.shape) / seconds - 1)
        covered_serving.append(seconds <= serving.upper_ratio * serving.step_s(mix.shape))
        serving.observe(mix.shape, seconds)
    repeats = len(found) // len(mixes)
    print(
        f"{profile.model}, {profile.dtype}, {profile.device.name}: sweep of {profile.measured.wall_s:.0f} s", end="; "
    )
    print(f"{len(mixes)} held-out mixes, {repeats} times each; noise {profile.noise}")
    print("| predicted by | against | median error | p90 error | median of predicted / measured | below p90 |")
    print("| --- | --- | --- | --- | --- | --- |")
    lines = [
        ("fitted constants", f"median of {repeats}", shapes, None),
        ("fitted constants, common factor taken out", f"median of {repeats}", without_factor, None),
        ("fitted constants", "single steps", single, covered),
        ("with online correction", "single steps", corrected, covered_serving),
    ]
    for name, against, errors, below in lines:
        size = np.abs(errors)
        share = "" if below is None else f"{np.mean(below):.1%}"
        print(
            f"| {name} | {against} | {np.median(size):.1%} | {np.quantile(size, 0.9):.1%} "
            f"| {1 + np.median(errors):.3f} | {share} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct")
    parser.add_argument("--profile", type=Path, help="read, or where there is none written")
    parser.add_argument("--random-weights", action="store_true")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    source = resolve_model(options.model)
    if options.profile and options.profile.exists():
        profile = load_profile(options.profile)
    else:
        profile = profile_model(source, "auto", random_weights=options.random_weights)
        if options.profile:
            save_profile(options.profile, profile)
    mixes, found = measure_mixes(
        source.directory,
        profile.architecture.vocab_size,
        random_weights=options.random_weights,
        steps=options.steps,
        repeats=options.repeats,
        seed=options.seed,
    )
    report(profile, mixes, found)


if __name__ == "__main__":
    main()
