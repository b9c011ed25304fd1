"""How near simulation comes to reality: real runs of `superinfer bench`, simulated again with the same requests.

    superinfer bench mixed --load 0.5 --journal --policy slack --policy fcfs --seed 5 --out RUN1        # and RUN2, …
    python tests/benchmarks/fidelity.py RUN1 RUN2 ... [--calibrate-from OTHER ...] [--draws 15]

Runs of one scenario, load and seed are repeats of each other. For each policy and service: attainment and end-to-end
times at the 50th, 95th and 99th percentile, real and simulated; the mean time to first token, queueing included, and
per output token. A device's noise is chance, and near its capacity a few slow seconds make or break a queue: real
figures are the median of the repeats, simulated ones that of `--draws` draws of the noise, in brackets how far it is
off, and beside each from where to where they go. The profile is that of the real runs.

Simulated are a device as its profile says; one calibrated by the runs' own journals (two levels and the noise, as
`superinfer bench --simulate --calibrate-from RUN`), or with `--calibrate-from` by those of other runs; and one that
takes at each moment as long as the real one did for steps of the kind (with and without prefill): what remains then is
neither the profile nor the machine but the simulator's doing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import yaml
from real_steps import RealSteps

from superinfer.cli.bench.calibration import journal_path
from superinfer.cli.bench.scenario import Scenario
from superinfer.cli.bench.served_target import as_served
from superinfer.cli.bench.simulated_load import SimulatedLoad, simulated_load
from superinfer.cli.bench.simulated_run import run_simulated
from superinfer.cli.bench.target import SimulationTarget, local_target, with_room_for
from superinfer.contracts.contract import SLOContract
from superinfer.executor.simulated import SimulatedDevice
from superinfer.results.summary import summarize_run
from superinfer.scheduler.steps import StepPlan, StepResult

QUANTILES = ("p50", "p95", "p99")
MEANS = ("ttft_ms", "tpot_ms")

Figures = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--calibrate-from", nargs="+", type=Path, default=[])
    parser.add_argument("--draws", type=int, default=15)
    options = parser.parse_args()
    columns = ["met", *QUANTILES, *(f"mean {name}" for name in MEANS)]
    print(
        "| runs | simulated | policy | service | " + " | ".join(f"{name}, real / simulated" for name in columns) + " |"
    )
    print("| --- | --- | --- | --- | " + " | ".join("---" for _ in columns) + " |")
    furthest: dict[str, list[float]] = {}
    for case in cases(options.folders):
        for policy in case.policies:
            for name, draws in case.simulations(policy, options.calibrate_from, options.draws):
                for comparison in compared(case.real(policy), draws):
                    cells = [case.name, name, policy, comparison.service_id, *comparison.cells]
                    print("| " + " | ".join(cells) + " |", flush=True)
                    points, share = furthest.setdefault(name, [0.0, 0.0])
                    furthest[name] = [max(points, comparison.points), max(share, comparison.share)]
    for name, (points, share) in furthest.items():
        print(f"\n{name}: attainment within {points:.1f} points, quantiles within {100 * share:.1f} %")


def cases(folders: Sequence[Path]) -> list[Case]:
    """The folders, repeats together."""
    found: dict[tuple[Any, ...], list[Path]] = {}
    for folder in folders:
        summary = json.loads((folder / "summary.json").read_text())
        found.setdefault(tuple(summary[key] for key in ("scenario", "seed", "rate_rps")), []).append(folder)
    return [Case(each) for each in found.values()]


class Case:
    """The folders of real runs that repeat each other, and what is needed to simulate them."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders
        self.summaries: list[Figures] = [json.loads((each / "summary.json").read_text()) for each in folders]
        first = self.summaries[0]
        self.policies = [run["policy"] for run in first["runs"]]
        self.name = f"{first['scenario']} at {first['load']:.0%}, seed {first['seed']}, {len(folders)} runs"
        config = yaml.safe_load((folders[0] / "config.yaml").read_text())
        given = config["options"]
        os.environ["SUPERINFER_CACHE"] = str(Path(config["profile"]["path"]).parent.parent)
        self.scenario = Scenario.model_validate(config["scenario"])
        self.load: SimulatedLoad = simulated_load(self.scenario, seed=first["seed"], rate_rps=first["rate_rps"])
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

    def real(self, policy: str) -> list[Figures]:
        """A policy's figures, run by run."""
        return [next(run for run in each["runs"] if run["policy"] == policy) for each in self.summaries]

    def simulations(
        self, policy: str, calibrate_from: Sequence[Path], draws: int
    ) -> Iterator[tuple[str, list[Figures]]]:
        """What is simulated, and its figures, draw by draw."""
        yield "by the profile", [self.simulate(policy, self.target, seed) for seed in range(draws)]
        if calibrate_from:
            target = as_served(self.target, calibrate_from)
            yield "calibrated by others", [self.simulate(policy, target, seed) for seed in range(draws)]
        journals = [journal_path(folder, policy) for folder in self.folders]
        if not all(map(Path.exists, journals)):
            return
        if not calibrate_from:
            targets = [as_served(self.target, [folder], policy) for folder in self.folders]
            found = [self.simulate(policy, target, seed) for target in targets for seed in range(draws)]
            yield "calibrated by themselves", found
        quiet = dataclasses.replace(self.target, sigma=0.0, drift=None)
        known = []
        for journal in journals:
            with patch.object(SimulatedDevice, "execute", as_slow(RealSteps(journal), SimulatedDevice.execute)):
                known.append(self.simulate(policy, quiet, 0))
        yield "as slow at each moment", known

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


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """A service, real and simulated: cells of a table; how far off attainment (points) and the furthest quantile."""

    service_id: str
    cells: list[str]
    points: float
    share: float


def compared(real: list[Figures], draws: list[Figures]) -> Iterator[Comparison]:
    """Each service of a policy."""
    for service_id in real[0]["contracts"]:
        was, simulated = ([each["contracts"][service_id] for each in runs] for runs in (real, draws))
        met, found = ([100 * each["attainment"] for each in runs] for runs in (was, simulated))
        points = abs(statistics.median(found) - statistics.median(met))
        cells, shares = [f"{_middle(met, '.1f')} / {_middle(found, '.1f')} %"], []
        for key, statistic in [("e2e_ms", name) for name in QUANTILES] + [(name, "mean") for name in MEANS]:
            was_ms, found_ms = ([each[key][statistic] for each in runs] for runs in (was, simulated))
            share = statistics.median(found_ms) / statistics.median(was_ms) - 1.0
            cells.append(f"{_middle(was_ms, ',.0f')} / {_middle(found_ms, ',.0f')} ms ({100 * share:+.1f} %)")
            if statistic in QUANTILES:
                shares.append(abs(share))
        yield Comparison(service_id, cells, points, max(shares))


def _middle(values: Sequence[float], form: str) -> str:
    """The median, and in brackets from where to where they go."""
    middle = f"{statistics.median(values):{form}}"
    return f"{middle} [{min(values):{form}}–{max(values):{form}}]" if len(values) > 1 else middle


if __name__ == "__main__":
    main()
