"""Attainment of policies against load: `superinfer bench` at each load and seed, then one table and one picture.

    python tests/benchmarks/load_sweep.py OUT [--scenario mixed] [--load 0.5 0.7 0.9 1.1 1.4] [--seed 1 2 3]
        [--requests 300] [--policy slack fcfs edf] [-- further options of `superinfer bench`, such as --simulate]

Each run has a folder of its own under OUT; one that is there already is not run again, so that a sweep that was
interrupted goes on where it stopped. On the real executor nothing else may use the machine meanwhile.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from superinfer.results.load_sweep import sweep_plot, sweep_points, sweep_table


def main() -> None:
    arguments = sys.argv[1:]
    end = arguments.index("--") if "--" in arguments else len(arguments)
    own, further = arguments[:end], arguments[end + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--scenario", default="mixed")
    parser.add_argument("--load", nargs="+", type=float, default=[0.5, 0.7, 0.9, 1.1, 1.4])
    parser.add_argument("--seed", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--policy", nargs="+", default=["slack", "fcfs", "edf"])
    options = parser.parse_args(own)
    options.out.mkdir(parents=True, exist_ok=True)
    for seed in options.seed:
        for load in options.load:
            run(options, load, seed, further)
    write(options.out)


def run(options: argparse.Namespace, load: float, seed: int, further: list[str]) -> None:
    """One `superinfer bench`, unless its folder is there."""
    folder = options.out / f"load-{load:g}-seed-{seed}"
    if folder.exists():
        return
    command = [sys.executable, "-P", "-m", "superinfer.cli.main", "bench", options.scenario]
    command += [f"--load={load}", f"--seed={seed}", f"--requests={options.requests}", f"--out={folder}"]
    command += [f"--policy={policy}" for policy in options.policy] + further
    print(" ".join(command[3:]), file=sys.stderr, flush=True)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def write(out: Path) -> None:
    """Table and picture of all runs under `out`."""
    summaries = [json.loads(path.read_text()) for path in sorted(out.glob("load-*/summary.json"))]
    points = sweep_points(summaries)
    first = summaries[0]
    label = "simulated, " if first["simulated"] else ""
    most = max(point.seeds for point in points)
    medians = f", medians of up to {most} seeds" if most > 1 else ""
    title = f"{first['scenario']} ({label}{first['model']}{medians})"
    (out / "attainment_by_load.png").write_bytes(sweep_plot(points, title))
    table = sweep_table(points)
    (out / "attainment_by_load.md").write_text(table + "\n")
    print(table)


if __name__ == "__main__":
    main()
