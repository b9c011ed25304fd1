"""How near predictions came to what then was: requests when they came, steps when they were planned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Predicted:
    """One figure as it was predicted and as it was, milliseconds; `of` says whose: a contract, a kind of step."""

    of: str
    predicted_ms: float
    real_ms: float


@dataclass(slots=True)
class Calibration:
    """Of one run: times to first token and per output token of the requests asked about, and every step.

    `covered` is the share of steps below the bound that nine in ten are predicted to keep; None without steps.
    """

    ttft: list[Predicted] = field(default_factory=list)
    tpot: list[Predicted] = field(default_factory=list)
    steps: list[Predicted] = field(default_factory=list)
    covered: float | None = None


def calibration_figures(calibration: Calibration) -> dict[str, Any]:
    """Errors by contract and of the steps, ready for JSON."""
    services = dict.fromkeys(each.of for each in (*calibration.ttft, *calibration.tpot))
    return {
        "contracts": {
            service_id: {
                "ttft": error_figures(each for each in calibration.ttft if each.of == service_id),
                "tpot": error_figures(each for each in calibration.tpot if each.of == service_id),
            }
            for service_id in services
        },
        "steps": {**(error_figures(calibration.steps) or {}), "below_p90": calibration.covered},
    }


def error_figures(pairs: Iterable[Predicted]) -> dict[str, Any] | None:
    """|predicted − real| / real: mean, median, 90 % quantile; and the sum of predictions over that of what was real,
    less one. None where there are no pairs.
    """
    errors, bias = _errors(list(pairs))
    if not len(errors):
        return None
    return {
        "count": len(errors),
        "mean_error": float(errors.mean()),
        "median_error": float(np.median(errors)),
        "p90_error": float(np.quantile(errors, 0.9)),
        "bias": bias,
    }


def calibration_line(policy: str, figures: dict[str, Any]) -> str:
    """The figures of a run in one line."""
    parts = []
    for service_id, errors in figures["contracts"].items():
        named = ((name, errors[key]) for name, key in (("TTFT", "ttft"), ("TPOT", "tpot")))
        texts = [f"{name} {_percent(each)}" for name, each in named if each is not None]
        parts.append(f"{service_id} {', '.join(texts)}")
    if figures["steps"].get("count"):
        parts.append(f"steps {_percent(figures['steps'])}, {100 * figures['steps']['below_p90']:.0f} % below their p90")
    return f"{policy}: predicted with a mean (median) error of: {'; '.join(parts) or 'nothing'}"


def _percent(errors: dict[str, Any]) -> str:
    return f"{100 * errors['mean_error']:.1f} ({100 * errors['median_error']:.1f}) %"


def _errors(pairs: Sequence[Predicted]) -> tuple[np.ndarray[Any, np.dtype[np.float64]], float]:
    known = [each for each in pairs if each.real_ms > 0.0]
    predicted = np.array([each.predicted_ms for each in known], np.float64)
    real = np.array([each.real_ms for each in known], np.float64)
    if not known:
        return real, 0.0
    return np.abs(predicted / real - 1.0), float(predicted.sum() / real.sum() - 1.0)
