"""How near simulation comes to reality: real runs of `superinfer bench`, simulated again with the same requests.

    superinfer bench mixed --load 0.5 --journal --policy slack --policy fcfs --seed 5 --out RUN1        # and RUN2, …
    python tests/benchmarks/fidelity.py RUN1 RUN2 ... [--calibrate-from OTHER ...] [--draws 9]

Runs of one scenario and rate belong together: repeats of a seed, and seeds. For each policy and service of theirs:
attainment, end-to-end times at the 50th, 95th and 99th percentile, and the mean time to first token, queueing included,
and per output token, over the requests of all the real runs and over those of `--draws` simulations of each. A device's
noise is chance, and near its capacity a few slow seconds make or break a queue: of a single run, and of its immediate
repeat, the percentiles differ by a fifth; in brackets is from where to where the runs go. The profile is that of the
first run.

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
from superinfer.results.attainment import attainment, distribution
from superinfer.results.outcome import Outcome
from superinfer.scheduler.steps import StepPlan, StepResult

QUANTILES = ("p50", "p95", "p99")
MEANS = ("ttft_ms", "tpot_ms")

Run = list[Outcome]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--calibrate-from", nargs="+", type=Path, default=[])
    parser.add_argument("--draws", type=int, default=9)
    options = parser.parse_args()
    columns = ["met", *QUANTILES, *(f"mean {name}" for name in MEANS)]
    titles = ["runs", "simulated", "policy", "service", *(f"{name}, real / simulated" for name in columns)]
    print(f"| {' | '.join(titles)} |\n| {' | '.join('---' for _ in titles)} |")
    furthest: dict[str, list[float]] = {}
    for group in groups(options.folders):
        cases = [Case(folder) for folder in group]
        title = f"{cases[0].title}, {len(cases)} runs"
        for policy in cases[0].policies:
            real = [case.real(policy) for case in cases]
            ways: dict[str, list[Run]] = {}
            for case in cases:
                for way, run in case.simulations(policy, options.calibrate_from, options.draws):
                    ways.setdefault(way, []).append(run)
            for way, runs in ways.items():
                for comparison in compared(real, runs):
                    print("| " + " | ".join([title, way, policy, comparison.service_id, *comparison.cells]) + " |")
                    points, share = furthest.setdefault(way, [0.0, 0.0])
                    furthest[way] = [max(points, comparison.points), max(share, comparison.share)]
    for way, (points, share) in furthest.items():
        print(f"\n{way}: attainment within {points:.1f} points, quantiles within {100 * share:.1f} %")


def groups(folders: Sequence[Path]) -> list[list[Path]]:
    """The folders of one scenario and rate together."""
    found: dict[tuple[Any, ...], list[Path]] = {}
    for folder in folders:
        summary = json.loads((folder / "summary.json").read_text())
        found.setdefault((summary["scenario"], round(summary["load"], 3)), []).append(folder)
    return list(found.values())


class Case:
    """The folder of a real run, and what is needed to simulate it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        summary = json.loads((folder / "summary.json").read_text())
        self.policies = [run["policy"] for run in summary["runs"]]
        self.title = f"{summary['scenario']} at {summary['load']:.0%}"
        config = yaml.safe_load((folder / "config.yaml").read_text())
        given = config["options"]
        os.environ["SUPERINFER_CACHE"] = str(Path(config["profile"]["path"]).parent.parent)
        self.scenario = Scenario.model_validate(config["scenario"])
        self.load: SimulatedLoad = simulated_load(self.scenario, seed=summary["seed"], rate_rps=summary["rate_rps"])
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

    def real(self, policy: str) -> Run:
        """What became of a policy's requests."""
        lines = (self.folder / "per_request.jsonl").read_bytes().splitlines()
        return [
            msgspec.convert(each, Outcome, strict=False) for each in map(json.loads, lines) if each["policy"] == policy
        ]

    def simulations(self, policy: str, calibrate_from: Sequence[Path], draws: int) -> Iterator[tuple[str, Run]]:
        """What is simulated, and what became of the requests, draw by draw."""
        for seed in range(draws):
            yield "by the profile", self.simulate(policy, self.target, seed)
        journal = journal_path(self.folder, policy)
        if calibrate_from:
            target = as_served(self.target, calibrate_from)
        elif journal.exists():
            target = as_served(self.target, [self.folder], policy)
        else:
            return
        for seed in range(draws):
            yield "calibrated", self.simulate(policy, target, seed)
        if journal.exists():
            quiet = dataclasses.replace(self.target, sigma=0.0, drift=None)
            with patch.object(SimulatedDevice, "execute", as_slow(RealSteps(journal), SimulatedDevice.execute)):
                yield "as slow at each moment", self.simulate(policy, quiet, 0)

    def simulate(self, policy: str, target: SimulationTarget, seed: int) -> Run:
        """One draw of the noise."""
        return run_simulated(policy, self.load, target, self.contracts, self.scenario.faults, seed=seed).outcomes


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


def compared(real: list[Run], simulated: list[Run]) -> Iterator[Comparison]:
    """Each service of a policy."""
    for service_id in dict.fromkeys(outcome.service_id for outcome in real[0]):
        was, found = ([_figures(run, service_id) for run in runs] for runs in (real, simulated))
        all_was, all_found = (
            _figures([each for run in runs for each in run], service_id) for runs in (real, simulated)
        )
        cells, shares = [], []
        for name in all_was:
            unit, form = ("%", ".1f") if name == "met" else ("ms", ",.0f")
            texts = [
                f"{whole[name]:{form}} [{min(each[name] for each in runs):{form}}–"
                f"{max(each[name] for each in runs):{form}}]"
                for whole, runs in ((all_was, was), (all_found, found))
            ]
            share = all_found[name] / all_was[name] - 1.0 if all_was[name] else 0.0
            cells.append(f"{' / '.join(texts)} {unit}" + (f" ({100 * share:+.1f} %)" if unit == "ms" else ""))
            if name in QUANTILES:
                shares.append(abs(share))
        yield Comparison(service_id, cells, abs(all_found["met"] - all_was["met"]), max(shares))


def _figures(outcomes: Run, service_id: str) -> dict[str, float]:
    own = [each for each in outcomes if each.service_id == service_id]
    spread = distribution(each.e2e_ms for each in own)
    means = {f"mean {name}": distribution(getattr(each, name) for each in own).mean for name in MEANS}
    figures = {name: getattr(spread, name) for name in QUANTILES} | means
    return {"met": 100.0 * (attainment(own).share or 0.0)} | {name: each or 0.0 for name, each in figures.items()}


if __name__ == "__main__":
    main()
