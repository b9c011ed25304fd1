"""A device's own speed over time: other tenants, clocks and heat make all steps slower or faster for seconds.

What a fit leaves over in each step, log(measured / predicted), has two parts: one that neighbours in time share, and
one of each step alone. The shared part is taken out before the constants are fitted, lest a slow moment pass for an
expensive shape; its size and persistence go into the profile, so that a simulated device drifts like the real one.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

WINDOW_S = 3.0
"""Steps this far apart (one standard deviation) still tell of each other's speed."""
PRIOR_STEPS = 2.0
"""The speed is drawn towards the usual as if so many usual steps lay in every window."""
LONGEST_RESIDUAL = 0.4
"""Residuals beyond this (log) are interruptions, and count as if they were as long."""
LASTING_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
LAG_STEP_S = 0.5
LAG_STEPS = 24
FEWEST_PAIRS = 30
MOST_SHARED = 0.95
"""Some of the variance is always each step's own."""


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """A device's speed as a log-normal factor on step times, of `sigma`, that forgets itself by 1/e in `lasts_s`
    seconds (an Ornstein–Uhlenbeck process in the logarithm).
    """

    sigma: float
    lasts_s: float


class StepNoise(msgspec.Struct, frozen=True, kw_only=True):
    """Noise of step times: log-normal of `sigma` for each step alone, and a drift where one could be told."""

    sigma: float
    drift: Drift | None = None


def log_speed(residuals: Array, times_s: Array) -> Array:
    """The shared part of each step's residual, from its neighbours in time without itself."""
    clipped = np.clip(residuals - np.median(residuals), -LONGEST_RESIDUAL, LONGEST_RESIDUAL)
    weights = np.exp(-0.5 * ((times_s[:, None] - times_s[None, :]) / WINDOW_S) ** 2)
    np.fill_diagonal(weights, 0.0)
    return np.asarray(weights @ clipped / (weights.sum(axis=1) + PRIOR_STEPS), dtype=np.float64)


def step_noise(residuals: Array, times_s: Array) -> StepNoise:
    """Both parts of the noise, from how alike residuals are by their distance in time."""
    clipped = np.clip(residuals - np.median(residuals), -LONGEST_RESIDUAL, LONGEST_RESIDUAL)
    variance = float(np.mean(clipped**2))
    first, second = np.triu_indices(len(clipped), 1)
    lags_s = np.abs(times_s[first] - times_s[second])
    bins = (lags_s / LAG_STEP_S).astype(np.int64)
    near = bins < LAG_STEPS
    pairs = np.bincount(bins[near], minlength=LAG_STEPS)
    known = pairs >= FEWEST_PAIRS
    if known.sum() < 3:
        return StepNoise(sigma=variance**0.5)
    sums = np.bincount(bins[near], (clipped[first] * clipped[second])[near], minlength=LAG_STEPS)
    alike = sums[known] / pairs[known]
    middle_s = LAG_STEP_S * (np.arange(LAG_STEPS)[known] + 0.5)
    best = (np.inf, 0.0, 1.0)
    for lasts_s in LASTING_S:
        fading = np.exp(-middle_s / lasts_s)
        shared = min(max(float(alike @ fading / (fading @ fading)), 0.0), MOST_SHARED * variance)
        best = min(best, (float(np.sum((alike - shared * fading) ** 2)), shared, lasts_s))
    _, shared, lasts_s = best
    drift = Drift(sigma=shared**0.5, lasts_s=lasts_s) if shared > 0.0 else None
    return StepNoise(sigma=(variance - shared) ** 0.5, drift=drift)
