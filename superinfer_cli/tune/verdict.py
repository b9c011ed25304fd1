"""Whether tuned settings are better than the default on seeds that the search never saw."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

from superinfer.cli.tune.evaluate import Bench, Score, Settings

RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Verdict:
    """Held-out scores of both, and the 95 % bootstrap interval of the mean difference (tuned − default)."""

    default: list[Score]
    tuned: list[Score]
    difference: float
    difference_ci95: tuple[float, float]

    @property
    def is_better(self) -> bool:
        """True where the whole interval lies above zero."""
        return self.difference_ci95[0] > 0.0


def judge(
    bench: Bench, search_default: Settings, best: Settings, seeds: list[int], on_run: Callable[[], None]
) -> Verdict:
    """Run both settings on the same held-out requests."""
    default: list[Score] = []
    tuned: list[Score] = []
    for seed in seeds:
        load = bench.load(seed)
        default.append(bench.run(search_default, load, seed))
        on_run()
        tuned.append(bench.run(best, load, seed))
        on_run()
    differences = [b.score - a.score for a, b in zip(default, tuned, strict=True)]
    return Verdict(default, tuned, fmean(differences), bootstrap_ci95(differences))


def bootstrap_ci95(values: list[float]) -> tuple[float, float]:
    """Percentile bootstrap of the mean; always the same for the same values."""
    draw = random.Random(0)
    means = sorted(fmean(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1]
