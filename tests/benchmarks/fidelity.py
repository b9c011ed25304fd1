"""How near simulation comes to reality: real runs of `superinfer bench`, simulated again with the same requests.

    python tests/benchmarks/fidelity.py RUN_FOLDER [RUN_FOLDER ...]

For each policy and service: attainment and end-to-end times at the 50th, 95th and 99th percentile, real and simulated;
the mean time to first token, queueing included, and per output token, and in brackets by how much the prediction for
single requests is off on average. The simulation uses the profile of the model in the cache, which should be the one of
the real run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

QUANTILES = ("p50", "p95", "p99")
MEANS = ("ttft_ms", "tpot_ms")

Requests = dict[tuple[str, str], dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    options = parser.parse_args()
    columns = [*QUANTILES, *(f"mean {name} (single requests)" for name in MEANS)]
    print("| run | policy | service | met, real | met, simulated | " + " | ".join(columns) + " |")
    print("| --- | --- | --- | --- | --- | " + " | ".join("---" for _ in columns) + " |")
    for folder in options.folders:
        real = json.loads((folder / "summary.json").read_text())
        config = yaml.safe_load((folder / "config.yaml").read_text())
        with tempfile.TemporaryDirectory() as directory:
            simulated = simulate(real, config, Path(directory))
            pair = requests_of(folder), requests_of(Path(directory) / "run")
        for row in rows(real, simulated, *pair):
            print(f"| {folder.name} | " + " | ".join(row) + " |", flush=True)


def simulate(real: dict[str, Any], config: dict[str, Any], directory: Path) -> dict[str, Any]:
    """The summary of the same scenario, seed and rate in simulation; its run folder is `directory`/run."""
    scenario = directory / "scenario.yaml"
    scenario.write_text(yaml.safe_dump(config["scenario"]))
    command = [sys.executable, "-P", "-m", "superinfer.cli.main", "bench", str(scenario), "--simulate", "--json"]
    command += [f"--seed={real['seed']}", f"--rate={real['rate_rps']}", f"--out={directory}/run"]
    command += [f"--policy={run['policy']}" for run in real["runs"]]
    if config["options"]["model"]:
        command.append(f"--model={config['options']['model']}")
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    summary: dict[str, Any] = json.loads(finished.stdout)
    return summary


def requests_of(folder: Path) -> Requests:
    """Every request's figures by policy and id."""
    lines = (folder / "per_request.jsonl").read_text().splitlines()
    return {(line["policy"], line["request_id"]): line for line in map(json.loads, lines)}


def rows(real: dict[str, Any], simulated: dict[str, Any], ours: Requests, theirs: Requests) -> Iterator[list[str]]:
    """One line of cells for each policy and service; `ours` are the real requests, `theirs` the simulated ones."""
    for run, twin in zip(real["runs"], simulated["runs"], strict=True):
        for service_id, figures in run["contracts"].items():
            other = twin["contracts"][service_id]
            cells = [run["policy"], service_id]
            cells += [f"{100 * each['attainment']:.1f} %" for each in (figures, other)]
            cells += [_compared(figures["e2e_ms"][name], other["e2e_ms"][name]) for name in QUANTILES]
            for name in MEANS:
                errors = [
                    abs(theirs[key][name] / request[name] - 1)
                    for key, request in ours.items()
                    if key[0] == run["policy"]
                    and request["service_id"] == service_id
                    and request[name]
                    and theirs[key][name]
                ]
                compared = _compared(figures[name]["mean"], other[name]["mean"])
                cells.append(f"{compared} ({100 * statistics.fmean(errors):.0f} %)" if errors else compared)
            yield cells


def _compared(is_ms: float, was_ms: float) -> str:
    return f"{is_ms:,.0f} / {was_ms:,.0f} ms ({100 * (was_ms / is_ms - 1):+.0f} %)"


if __name__ == "__main__":
    main()
