"""How near simulation comes to reality: real runs of `superinfer bench`, simulated again with the same requests.

    python tests/benchmarks/fidelity.py RUN_FOLDER [RUN_FOLDER ...] [--draws 9]

For each policy and service: attainment and end-to-end times at the 50th, 95th and 99th percentile, real and simulated;
the mean time to first token, queueing included, and per output token. A device's noise is chance: near its capacity a
few slow seconds make or break a queue. Simulated figures are therefore the median of `--draws` draws of the noise, in
brackets how far it is off, and beside them from where to where the draws go. The profile is that of the real run.

Where the run kept its journal (`bench --journal`), a second line for each simulates a device whose steps are as much
slower as the real ones were in sum, and a third one that takes at each moment as long as the real one did for steps of
the kind (with and without prefill): what remains is neither the profile nor the machine but the simulator's doing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import yaml
from real_steps import RealSteps

from superinfer.cli.bench.scenario import Scenario
from superinfer.cli.bench.simulated_load import SimulatedLoad, simulated_load
from superinfer.cli.bench.simulated_run import run_simulated
from superinfer.cli.bench.target import SimulationTarget, local_target, with_room_for
from superinfer.contracts.contract import SLOContract
from superinfer.executor.simulated import SimulatedDevice
from superinfer.profiler.latency_model import LatencyModel
from superinfer.results.summary import summarize_run
from superinfer.scheduler.steps import StepPlan, StepResult

QUANTILES = ("p50", "p95", "p99")
MEANS = ("ttft_ms", "tpot_ms")

Figures = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--draws", type=int, default=9)
    options = parser.parse_args()
    columns = ["met", *QUANTILES, *(f"mean {name}" for name in MEANS)]
    print("| run | policy | service | " + " | ".join(f"{name}, real / simulated" for name in columns) + " |")
    print("| --- | --- | --- | " + " | ".join("---" for _ in columns) + " |")
    for folder in options.folders:
        case = Case(folder)
        for run in case.summary["runs"]:
            for name, draws in case.simulations(run["policy"], options.draws):
                for row in rows(run, draws):
                    print(f"| {folder.name}{name} | " + " | ".join(row) + " |", flush=True)


class Case:
    """A real run's folder, and what is needed to simulate it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.summary: Figures = json.loads((folder / "summary.json").read_text())
        config = yaml.safe_load((folder / "config.yaml").read_text())
        given = config["options"]
        os.environ["SUPERINFER_CACHE"] = str(Path(config["profile"]["path"]).parent.parent)
        self.scenario = Scenario.model_validate(config["scenario"])
        self.load: SimulatedLoad = simulated_load(
            self.scenario, seed=self.summary["seed"], rate_rps=self.summary["rate_rps"]
        )
        target = local_target(
            config["model"]["name"] if given["model"] is None else given["model"],
            given["dtype"],
            domains=self.scenario.domains,
            random_weights=given["random_weights"],
            kv_cache_bytes=given["kv_cache_bytes"],
        )
        self.target = with_room_for(target, self.scenario.name, self.load.longest)
        contracts = msgspec.convert(config["contracts"], list[SLOContract])
        self.contracts = {contract.service_id: contract for contract in contracts}

    def simulations(self, policy: str, draws: int) -> Iterator[tuple[str, list[Figures]]]:
        """What is simulated, and its figures, draw by draw."""
        yield "", [self.simulate(policy, self.target, seed) for seed in range(draws)]
        path = self.folder / f"journal-{policy}.jsonl"
        if not path.exists():
            return
        steps = RealSteps(path)
        target = dataclasses.replace(self.target, latency_model=slower(self.target.latency_model, steps.level))
        yield f", steps × {steps.level:.2f}", [self.simulate(policy, target, seed) for seed in range(draws)]
        quiet = dataclasses.replace(self.target, sigma=0.0, drift=None)
        with patch.object(SimulatedDevice, "execute", as_slow(steps, SimulatedDevice.execute)):
            yield ", as slow at each moment", [self.simulate(policy, quiet, 0)]

    def simulate(self, policy: str, target: SimulationTarget, seed: int) -> Figures:
        """A run's figures with one draw of the noise."""
        run = run_simulated(policy, self.load, target, self.contracts, self.scenario.faults, seed=seed)
        return summarize_run(run)


def as_slow(steps: RealSteps, execute: Callable[[SimulatedDevice, StepPlan], StepResult]) -> Any:
    """`execute` of a device whose steps take what the real ones took at that time."""

    def slowed(device: SimulatedDevice, plan: StepPlan) -> StepResult:
        result = execute(device, plan)
        ratio = steps.ratio_at(bool(plan.sequences), result.started_s)
        result.finished_s = result.started_s + ratio * result.duration_s
        return result

    return slowed


def slower(model: LatencyModel, level: float) -> LatencyModel:
    """A model of a device whose steps take `level` times as long."""
    times = {
        each.name: level * getattr(model, each.name)
        for each in dataclasses.fields(model)
        if each.init and each.name.endswith("_s")
    }
    points = [(tokens, level * seconds) for tokens, seconds in model.linear_points]
    return dataclasses.replace(model, linear_points=points, **times)


def rows(real: Figures, draws: list[Figures]) -> Iterator[list[str]]:
    """One line of cells for each service."""
    for service_id, figures in real["contracts"].items():
        others = [each["contracts"][service_id] for each in draws]
        met = [100 * each["attainment"] for each in others]
        cells = [real["policy"], service_id]
        cells.append(
            f"{100 * figures['attainment']:.1f} / {statistics.median(met):.1f} %"
            + _spread(min(met), max(met), len(met))
        )
        for key, statistic in [("e2e_ms", name) for name in QUANTILES] + [(name, "mean") for name in MEANS]:
            cells.append(_compared(figures[key][statistic], [each[key][statistic] for each in others]))
        yield cells


def _compared(was_ms: float, simulated_ms: list[float]) -> str:
    middle_ms = statistics.median(simulated_ms)
    return f"{was_ms:,.0f} / {middle_ms:,.0f} ms ({100 * (middle_ms / was_ms - 1):+.0f} %)" + _spread(
        min(simulated_ms), max(simulated_ms), len(simulated_ms)
    )


def _spread(low: float, high: float, draws: int) -> str:
    return f" {low:,.0f} to {high:,.0f}" if draws > 1 else ""


if __name__ == "__main__":
    main()
