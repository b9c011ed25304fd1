"""How well the requests of a real run were predicted when they came: asked of its journal once it is over."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from superinfer.cli.console import err
from superinfer.executor.simulation.hindsight import Predictions
from superinfer.results.calibration import Calibration, Predicted
from superinfer.results.outcome import Outcome
from superinfer.results.summary import PolicyRun

MODULE = "superinfer.executor.simulation.hindsight"
JOURNALS = "journal-*.jsonl"
"""Those of a run folder."""


def journal_path(folder: Path, policy: str) -> Path:
    """Where a policy's journal is in a run folder."""
    return folder / JOURNALS.replace("*", policy)


def calibrate_runs(runs: Sequence[PolicyRun], folder: Path) -> None:
    """Give each run that has a journal its calibration. A run without one keeps its results; stderr says why."""
    for run in runs:
        journal = journal_path(folder, run.policy)
        if not journal.exists():
            continue
        err.print(f"{run.policy}: going through its journal once more, to compare with what was predicted")
        try:
            found = predictions_of(journal)
        except KeyboardInterrupt:
            err.print("predictions are left out: interrupted")
            return
        if found is None:
            err.print(f"{run.policy}: its journal could not be gone through; predictions are left out")
            continue
        if found.ended_by is not None:
            err.print(f"{run.policy}: {found.ended_by}; predictions are those until then", soft_wrap=True)
        run.calibration = calibration(found, run.outcomes)


def predictions_of(journal: Path) -> Predictions | None:
    """Asked in a process of its own, which forks and therefore must have no threads; None where that fails."""
    command = [sys.executable, "-P", "-m", MODULE, str(journal)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        return None
    return msgspec.json.decode(done.stdout, type=Predictions)


def calibration(found: Predictions, outcomes: Iterable[Outcome]) -> Calibration:
    """What was predicted, beside what the client saw of requests that completed."""
    by_id = {outcome.request_id: outcome for outcome in outcomes if outcome.status in ("met", "missed")}
    result = Calibration()
    for request in found.requests:
        outcome = by_id.get(request.request_id)
        if outcome is None:
            continue
        for pairs, predicted_s, real_ms in (
            (result.ttft, request.ttft_s, outcome.ttft_ms),
            (result.tpot, request.tpot_s, outcome.tpot_ms),
        ):
            if predicted_s is not None and real_ms is not None:
                pairs.append(Predicted(outcome.service_id, 1e3 * predicted_s, real_ms))
    result.steps = [Predicted(step.kind, 1e3 * step.predicted_s, 1e3 * step.took_s) for step in found.steps]
    if found.steps:
        result.covered = sum(step.is_below_upper for step in found.steps) / len(found.steps)
    return result
