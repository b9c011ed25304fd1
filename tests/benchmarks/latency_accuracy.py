"""How well the latency model predicts steps that the sweep had not seen, measured after it on the same worker's core.

    python tests/benchmarks/latency_accuracy.py [MODEL] [--profile FILE] [--random-weights] [--steps 40] [--repeats 7]
        [--picture PNG]

Without `--profile` the model is profiled first. Held-out steps are random mixes of decodes with contexts of their own
and prefill chunks. Each is measured `--repeats` times, all once before any again: the median of a mix's times is taken
for what it costs, since a single step carries the noise of the machine. Printed are relative errors of

- the model as it serves, with its online correction, each mix's median prediction against its median time;
- the fitted constants alone, against the same, and without their common factor, which is the machine's speed now
  against the sweep's: what was learnt of shapes;
- both against single steps, in the order in which they ran;

and how many single steps stay below the upper prediction, as fitted and as it serves.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from superinfer.executor.config import WorkerConfig
from superinfer.executor.core_wait import core_wait_s
from superinfer.executor.cores import assign_cores
from superinfer.executor.models.catalog import resolve_model
from superinfer.executor.profile_model import THREADS, profile_model
from superinfer.executor.sweep import HOST_BLOCKS, SweepRunner
from superinfer.executor.worker_process import WorkerProcess
from superinfer.profiler.latency_model import LatencyModel
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


@dataclass(slots=True)
class Served:
    """The model as it serves, on the steps in the order in which they ran: predicted / measured of each, whether it
    stayed below the upper prediction, and what was predicted for each mix.
    """

    ratios: list[float]
    covered: list[bool]
    predicted: dict[SweepPoint, list[float]]


def serve(model: LatencyModel, found: list[tuple[SweepPoint, float]]) -> Served:
    """Predict and observe every step."""
    served = Served([], [], {})
    for mix, seconds in found:
        predicted_s = model.step_s(mix.shape)
        served.ratios.append(predicted_s / seconds)
        served.covered.append(seconds <= model.upper_ratio * predicted_s)
        served.predicted.setdefault(mix, []).append(predicted_s)
        model.observe(mix.shape, seconds)
    return served


def report(profile: ModelProfile, mixes: list[SweepPoint], found: list[tuple[SweepPoint, float]]) -> None:
    """The table."""
    fitted = profile.latency_model
    served = serve(profile.latency_model, found)
    medians = {mix: statistics.median(seconds for each, seconds in found if each == mix) for mix in mixes}
    shapes = np.array([fitted.uncorrected_step_s(mix.shape) / medians[mix] for mix in mixes])
    serving = np.array([statistics.median(served.predicted[mix]) / medians[mix] for mix in mixes])
    single = np.array([fitted.uncorrected_step_s(mix.shape) / seconds for mix, seconds in found])
    covered = np.mean(single * fitted.upper_ratio >= 1.0)
    repeats = len(found) // len(mixes)
    spread = np.median([np.std([math.log(s) for each, s in found if each == mix]) for mix in mixes])
    print(
        f"{profile.model}, {profile.dtype}, {profile.device.name}: sweep of {profile.measured.wall_s:.0f} s; "
        f"{len(mixes)} held-out mixes, {repeats} times each, repeats of one spread by {spread:.1%}; "
        f"noise {profile.noise}"
    )
    print("| predicted by | against | median error | p90 error | median of predicted / measured | below p90 |")
    print("| --- | --- | --- | --- | --- | --- |")
    lines = [
        ("as serving", f"median of {repeats}", serving, ""),
        ("fitted constants", f"median of {repeats}", shapes, ""),
        ("fitted constants, common factor taken out", f"median of {repeats}", shapes / np.median(shapes), ""),
        ("as serving", "single steps", np.array(served.ratios), f"{np.mean(served.covered):.1%}"),
        ("fitted constants", "single steps", single, f"{covered:.1%}"),
    ]
    for name, against, ratios, below in lines:
        errors = np.abs(ratios - 1.0)
        print(
            f"| {name} | {against} | {np.median(errors):.1%} | {np.quantile(errors, 0.9):.1%} "
            f"| {np.median(ratios):.3f} | {below} |"
        )


def draw(profile: ModelProfile, found: list[tuple[SweepPoint, float]], path: Path) -> None:
    """The calibration picture: predictions as served against what steps took, and how often quantiles held."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    served = serve(profile.latency_model, found)
    figure = Figure(figsize=(11, 5), layout="constrained")
    FigureCanvasAgg(figure)
    agreement, reliability = figure.subplots(1, 2)
    seconds = np.array([each for _, each in found])
    agreement.scatter(
        1e3 * seconds, 1e3 * seconds * np.array(served.ratios), s=8, color="0.7", zorder=2, label="single steps"
    )
    for phase, color in (("decode", "#0072b2"), ("prefill", "#d55e00"), ("mixed", "#009e73")):
        mixes = [mix for mix in served.predicted if phase_of(mix) == phase]
        was = [1e3 * statistics.median(s for each, s in found if each == mix) for mix in mixes]
        said = [1e3 * statistics.median(served.predicted[mix]) for mix in mixes]
        agreement.scatter(was, said, s=26, color=color, zorder=3, label=f"{phase}, medians")
    line = np.array([0.8 * seconds.min(), 1.25 * seconds.max()]) * 1e3
    agreement.plot(line, line, color="0.4", zorder=1)
    agreement.fill_between(line, line * 0.85, line * 1.15, color="0.9", zorder=0, label="± 15 %")
    agreement.set(xscale="log", yscale="log", xlabel="measured step, ms", ylabel="predicted as serving, ms")
    agreement.legend(fontsize=8)
    measured = np.sort(1.0 / np.array(served.ratios))
    reliability.plot(measured, np.arange(1, len(measured) + 1) / len(measured), label="held-out steps, as serving")
    quantiles = sorted(profile.latency_model.residual_quantiles.items())
    reliability.plot([ratio for _, ratio in quantiles], [q for q, _ in quantiles], "o", label="quantiles of the sweep")
    reliability.axhline(
        0.9, color="0.4", linestyle="--", label=f"{np.mean(served.covered):.1%} below the p90 prediction"
    )
    reliability.set(xlabel="measured / predicted", ylabel="share of steps", xlim=(0.6, 1.8), ylim=(0, 1.01))
    reliability.legend(fontsize=8)
    figure.suptitle(f"{profile.model} · {profile.dtype} · {profile.device.name}: {len(found)} held-out steps")
    figure.savefig(path, dpi=110)


def phase_of(mix: SweepPoint) -> str:
    """What a step holds."""
    if not mix.chunks:
        return "decode"
    return "mixed" if mix.contexts else "prefill"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct")
    parser.add_argument("--profile", type=Path, help="read, or where there is none written")
    parser.add_argument("--random-weights", action="store_true")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--picture", type=Path)
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
    if options.picture:
        draw(profile, found, options.picture)


if __name__ == "__main__":
    main()
