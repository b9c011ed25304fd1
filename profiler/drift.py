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
LASTING_S = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""Of the drift in the variance of the noise; some of it is always each step's own."""
FEWEST_STEPS = 30


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
    """Both parts of the noise, the likeliest of a grid: an Ornstein–Uhlenbeck process seen through white noise, whose
    likelihood a Kalman filter gives for steps at any times (Harvey, Forecasting, Structural Time Series Models, 1989).

    A sweep is so short that how alike steps far apart happen to be says little; in the likelihood it counts for little.
    """
    order = np.argsort(times_s, kind="stable")
    clipped = np.clip(residuals - np.median(residuals), -LONGEST_RESIDUAL, LONGEST_RESIDUAL)[order]
    gaps_s = np.diff(times_s[order], prepend=times_s[order[0]])
    if len(clipped) < FEWEST_STEPS:
        return StepNoise(sigma=float(np.sqrt(np.mean(clipped**2))))
    lasts_s, shares = (axis.ravel() for axis in np.meshgrid(LASTING_S, SHARES))
    likelihoods, variances = _likelihoods(clipped, gaps_s, lasts_s, shares)
    best = int(np.argmax(likelihoods))
    variance, share = float(variances[best]), float(shares[best])
    drift = Drift(sigma=(share * variance) ** 0.5, lasts_s=float(lasts_s[best])) if share > 0.0 else None
    return StepNoise(sigma=((1.0 - share) * variance) ** 0.5, drift=drift)


def _likelihoods(residuals: Array, gaps_s: Array, lasts_s: Array, shares: Array) -> tuple[Array, Array]:
    """For each pair of (lasting, share of the drift in the variance) the logarithm of its likelihood, and the variance
    in all with which it is the likeliest.
    """
    speed, spread = np.zeros_like(shares), shares.copy()  # what is known of the drift, in units of the variance
    squares, logarithms = np.zeros_like(shares), np.zeros_like(shares)
    for residual, gap_s in zip(residuals, gaps_s, strict=True):
        kept = np.exp(-gap_s / lasts_s)
        speed, spread = kept * speed, kept**2 * spread + (1.0 - kept**2) * shares
        expected = spread + 1.0 - shares
        surprise = residual - speed
        squares += surprise**2 / expected
        logarithms += np.log(expected)
        gain = spread / expected
        speed, spread = speed + gain * surprise, spread * (1.0 - gain)
    variances = np.maximum(squares / len(residuals), 1e-12)
    return -0.5 * (len(residuals) * np.log(variances) + logarithms), variances
