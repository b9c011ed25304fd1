"""A simulated bench's devices as fast as real runs have shown them to be (`--calibrate-from`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from superinfer.cli.bench.calibration import JOURNALS
from superinfer.cli.bench.target import SimulationTarget
from superinfer.contracts.errors import UsageError
from superinfer.executor.simulation.served_steps import ServedSteps
from superinfer.profiler.served_speed import ServedStep, served_speed

FLAG = "--calibrate-from"


def as_served(target: SimulationTarget, folders: Sequence[Path], policy: str = "*") -> SimulationTarget:
    """The target with devices that take what steps took in those run folders (under a `policy`), and vary as they did.

    The scheduler is told what the profile says, and has to learn the rest as it does in service; load and bounds stay
    those of the profile, too. UsageError where a folder has no journal, or is of another model, precision or device.
    """
    runs = [run for folder in dict.fromkeys(map(Path.resolve, folders)) for run in _served(folder, target, policy)]
    try:
        speed = served_speed(target.latency_model, runs)
    except ValueError as error:
        raise UsageError(f"{FLAG} {', '.join(map(str, folders))}: {error}") from None
    return replace(
        target,
        device_model=target.latency_model.at_levels(speed.memory, speed.arithmetic),
        sigma=speed.noise.sigma,
        drift=speed.noise.drift,
        origin={
            **target.origin,
            "calibrated_from": [str(each) for each in folders],
            "served_speed": msgspec.to_builtins(speed),
        },
    )


def _served(folder: Path, target: SimulationTarget, policy: str) -> list[list[ServedStep]]:
    """The steps of a run folder, by policy and domain."""
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        was = [str(summary[key]) for key in ("model", "dtype", "weight_dtype", "device")]
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"{FLAG} {folder}: is not the run folder of a bench") from None
    if was != (wanted := [target.model, target.dtype, target.weight_dtype or target.dtype, target.device]):
        raise UsageError(f"{FLAG} {folder}: is a run of {_named(was)}; expected one of {_named(wanted)}")
    journals = sorted(folder.glob(JOURNALS.replace("*", policy)))
    if not journals:
        raise UsageError(f"{FLAG} {folder}: has no journal; a real bench keeps one with --journal")
    try:
        return [run for journal in journals for run in ServedSteps(journal).of_domain.values()]
    except UsageError as error:
        raise UsageError(f"{FLAG} {error}") from None


def _named(run: Sequence[str]) -> str:
    model, dtype, weight_dtype, device = run
    return f"{model} in {dtype} ({weight_dtype} weights) on {device}"
