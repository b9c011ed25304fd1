"""How near simulation comes to reality: real runs of `superinfer bench`, simulated again with the same requests.

    python tests/benchmarks/fidelity.py RUN_FOLDER [RUN_FOLDER ...]

For each policy and service: attainment in points and end-to-end times at the 50th, 95th and 99th percentile, real and
simulated. The simulation uses the profile of the model in the cache, which should be the one of the real run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

QUANTILES = ("p50", "p95", "p99")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    options = parser.parse_args()
    print("| run | policy | service | met, real | met, simulated | " + " | ".join(QUANTILES) + " |")
    print("| --- | --- | --- | --- | --- | " + " | ".join("---" for _ in QUANTILES) + " |")
    for folder in options.folders:
        real = json.loads((folder / "summary.json").read_text())
        config = yaml.safe_load((folder / "config.yaml").read_text())
        for row in rows(real, simulate(real, config)):
            print(f"| {folder.name} | " + " | ".join(row) + " |", flush=True)


def simulate(real: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """The summary of the same scenario, seed and rate in simulation."""
    with tempfile.TemporaryDirectory() as directory:
        scenario = Path(directory) / "scenario.yaml"
        scenario.write_text(yaml.safe_dump(config["scenario"]))
        command = [sys.executable, "-P", "-m", "superinfer.cli.main", "bench", str(scenario), "--simulate", "--json"]
        command += [f"--seed={real['seed']}", f"--rate={real['rate_rps']}", f"--out={directory}/run"]
        command += [f"--policy={run['policy']}" for run in real["runs"]]
        if config["options"]["model"]:
            command.append(f"--model={config['options']['model']}")
        finished = subprocess.run(command, check=True, capture_output=True, text=True)
    summary: dict[str, Any] = json.loads(finished.stdout)
    return summary


def rows(real: dict[str, Any], simulated: dict[str, Any]) -> Iterator[list[str]]:
    """One line of cells for each policy and service."""
    for run, twin in zip(real["runs"], simulated["runs"], strict=True):
        for service_id, figures in run["contracts"].items():
            other = twin["contracts"][service_id]
            cells = [run["policy"], service_id]
            cells += [f"{100 * each['attainment']:.1f} %" for each in (figures, other)]
            for quantile in QUANTILES:
                is_ms, was_ms = figures["e2e_ms"][quantile], other["e2e_ms"][quantile]
                cells.append(f"{is_ms:,.0f} / {was_ms:,.0f} ms ({100 * (was_ms / is_ms - 1):+.0f} %)")
            yield cells


if __name__ == "__main__":
    main()
