"""A run on disk: config, summary, every request, table and pictures; written whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from superinfer.contracts.errors import UsageError
from superinfer.results.calibration_plot import calibration_plot
from superinfer.results.plots import plot_all
from superinfer.results.report import render_report
from superinfer.results.summary import PolicyRun
from superinfer.results.table import summary_csv, table_title


def check_run_folder(path: Path, *, force: bool) -> None:
    """Raise UsageError where a run could not be written to `path`; call it before spending time on the run.

    With `force` an earlier run, or an empty folder, may be replaced; anything else is never removed.
    """
    if not (path.exists() or path.is_symlink()):
        check_writable(path)
        return
    if not path.is_dir() or path.is_symlink():
        raise UsageError(f"--out {path}: exists and is not a folder; give the name of a new folder")
    if not force:
        raise UsageError(f"--out {path}: exists already; give a new name, or --force to replace that run")
    if any(path.iterdir()) and not (path / "summary.json").is_file():
        raise UsageError(f"--out {path}: holds something other than a run (no summary.json); give a new name")


def check_writable(path: Path) -> None:
    """Raise UsageError where --out `path` could not be written; makes the folder that it goes into."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise UsageError(f"--out {path}: cannot be written ({error.strerror}); give another name") from None


def write_run_folder(
    path: Path,
    *,
    config: Mapping[str, Any],
    summary: Mapping[str, Any],
    runs: Sequence[PolicyRun],
    force: bool = False,
) -> Path:
    """Write config.yaml, summary.json, per_request.jsonl, summary.csv, the PNGs and report.html.

    Returns the folder, which appears under its name only when it is complete. Results are not thrown away if
    the name was taken meanwhile: a number is then appended to it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        _write_files(staging, config, summary, runs)
        staging.chmod(0o755)
        return _publish(staging, path, force=force)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _write_files(
    folder: Path, config: Mapping[str, Any], summary: Mapping[str, Any], runs: Sequence[PolicyRun]
) -> None:
    config_text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True, width=110)
    (folder / "config.yaml").write_text(config_text, encoding="utf-8")
    summary_text = json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False)
    (folder / "summary.json").write_text(summary_text + "\n", encoding="utf-8")
    (folder / "summary.csv").write_text(summary_csv(summary), encoding="utf-8")
    with (folder / "per_request.jsonl").open("wb") as file:
        for run in runs:
            for outcome in run.outcomes:
                line = {"policy": run.policy, **msgspec.structs.asdict(outcome)}
                file.write(msgspec.json.encode(line) + b"\n")
    pictures = plot_all(runs, table_title(summary))
    calibrations = [(run.policy, run.calibration) for run in runs if run.calibration is not None]
    if calibrations:
        pictures["calibration.png"] = calibration_plot(calibrations, table_title(summary))
    for name, png in pictures.items():
        (folder / name).write_bytes(png)
    (folder / "report.html").write_text(render_report(summary, pictures, config_text), encoding="utf-8")


def _publish(staging: Path, path: Path, *, force: bool) -> Path:
    """Give the finished folder its name; an earlier run is moved aside first and removed last."""
    if force and path.is_dir():
        check_run_folder(path, force=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
        os.rename(path, aside / path.name)
        os.rename(staging, path)
        shutil.rmtree(aside)
        return path
    target, number = path, 2
    while target.exists():
        target = path.with_name(f"{path.name}-{number}")
        number += 1
    os.rename(staging, target)
    return target
