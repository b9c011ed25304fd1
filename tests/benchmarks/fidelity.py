"""How near simulation comes to reality: real runs of `superinfer bench`, simulated again with the same requests.

    python tests/benchmarks/fidelity.py RUN_FOLDER [RUN_FOLDER ...]

For each policy and service: attainment and end-to-end times at the 50th, 95th and 99th percentile, real and simulated;
the mean time to first token, queueing included, and per output token, and in brackets by how much the prediction for
single requests is off on average. The simulation uses the profile that the real run used, where it still is.

Where the run kept its journal (`bench --journal`), a second line for each simulates a device whose steps are as much
slower as the real ones were in sum: what remains is not the machine's speed of that day but the simulator's doing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from superinfer.executor.journal import Begun, Observed, begin, read_journal, repeat
from superinfer.profiler.cache import cache_dir
from superinfer.profiler.store import load_profile, save_profile

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
        for run in real["runs"]:
            alone = {**real, "runs": [run]}
            levels = {1.0, level_of(folder / f"journal-{run['policy']}.jsonl")}
            for level in sorted(levels, key=lambda each: each != 1.0):
                with tempfile.TemporaryDirectory() as directory:
                    simulated = simulate(alone, config, Path(directory), level)
                    pair = requests_of(folder), requests_of(Path(directory) / "run")
                name = folder.name if level == 1.0 else f"{folder.name}, steps × {level:.2f}"
                for row in rows(alone, simulated, *pair):
                    print(f"| {name} | " + " | ".join(row) + " |", flush=True)


def level_of(journal: Path) -> float:
    """The sum of what a run's steps took over the sum of what the profile says of them; 1 without a journal."""
    if not journal.exists():
        return 1.0
    first, *entries = read_journal(journal)
    assert isinstance(first, Begun), f"{journal}: does not begin with what the scheduler was made of"
    scheduler = begin(first)
    took_s = said_s = 0.0
    for entry in entries:
        if isinstance(entry, Observed):
            step = scheduler.domains[entry.result.domain_id].in_flight.get(entry.result.step_id)
            if step is not None and step.shape.tokens:
                took_s += entry.result.duration_s
                said_s += scheduler.model.uncorrected_step_s(step.shape)
        repeat(scheduler, entry)
    return round(took_s / said_s, 3)


def scaled_cache(config: dict[str, Any], directory: Path, level: float) -> Path:
    """A cache like the usual one, but for the run's profile, whose steps take `level` times as long."""
    source, cache = Path(config["profile"]["path"]), directory / "cache"
    (cache / "profiles").mkdir(parents=True)
    for each in cache_dir().iterdir():
        if each.name != "profiles":
            (cache / each.name).symlink_to(each)
    profile = load_profile(source)
    constants = msgspec.structs.asdict(profile.latency)
    points = [(tokens, level * seconds) for tokens, seconds in constants.pop("linear_points")]
    times = {name: level * value for name, value in constants.items() if name.endswith("_s")}
    latency = msgspec.structs.replace(profile.latency, linear_points=points, **times)
    save_profile(cache / "profiles" / source.name, msgspec.structs.replace(profile, latency=latency))
    return cache


def simulate(real: dict[str, Any], config: dict[str, Any], directory: Path, level: float) -> dict[str, Any]:
    """The summary of the same scenario, seed and rate in simulation, with steps `level` times as long; its run folder
    is `directory`/run.
    """
    scenario = directory / "scenario.yaml"
    scenario.write_text(yaml.safe_dump(config["scenario"]))
    command = [sys.executable, "-P", "-m", "superinfer.cli.main", "bench", str(scenario), "--simulate", "--json"]
    command += [f"--seed={real['seed']}", f"--rate={real['rate_rps']}", f"--out={directory}/run"]
    command += [f"--policy={run['policy']}" for run in real["runs"]]
    if config["options"]["model"]:
        command.append(f"--model={config['options']['model']}")
    # The run's bounds: those of the scenario are multiples of what a profile says, and that is scaled.
    if config["options"]["slo_scale"] != 1.0 or level != 1.0:
        command.append(f"--slo-scale={config['options']['slo_scale'] / level}")
    cache = scaled_cache(config, directory, level)
    environment = {**os.environ, "SUPERINFER_CACHE": str(cache)}
    finished = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
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
