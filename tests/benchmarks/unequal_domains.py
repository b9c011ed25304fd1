"""Attainment on a simulated cluster of unequal domains: placement by headroom beside plain pull and round robin.

    python tests/benchmarks/unequal_domains.py --loads 0.5 0.7 0.9 --seeds 0 1 2

Every row serves the same requests. Loads are shares of what the cluster does of the mix under fcfs. All figures are
simulated ones.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

import msgspec

from superinfer.cli.bench.bounds import build_contracts
from superinfer.cli.bench.capacity import capacity_rps
from superinfer.cli.bench.scenario import load_scenario, override
from superinfer.cli.bench.simulated_load import simulated_load
from superinfer.cli.bench.simulated_run import simulate_load
from superinfer.cli.bench.target import SimulationTarget, cluster_target, with_room_for

WAYS = (("slack", "headroom"), ("slack", "pull"), ("round_robin", "pull"), ("fcfs", "pull"))


@dataclass(frozen=True)
class Row:
    """One way of serving at one load: shares of requests met, over all seeds and the least and most of a seed."""

    load: float
    policy: str
    placement: str
    attainment: float
    least: float
    most: float
    contracts: dict[str, float]
    on_slow: dict[str, float]
    met_by_kind: dict[str, tuple[float, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="cluster-unequal")
    parser.add_argument("--topology", type=Path, default=Path("h100-a100-4x8"))
    parser.add_argument("--model", default="llama-3-70b")
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--loads", nargs="+", type=float, default=[0.5, 0.7, 0.9])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--ways", nargs="+", default=[":".join(way) for way in WAYS], help="policy:placement")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    target = cluster_target(options.model, options.topology, "auto")
    scenario = load_scenario(options.scenario)
    scenario = override(scenario, {"requests": options.requests, "domains": len(target.domains)})
    blocks = min(spec.kv_blocks for spec in target.domains)
    capacity = capacity_rps(
        target, scenario, len(target.domains), limits=target.limits, kv_blocks=blocks, unequal=target
    )
    contracts = build_contracts(scenario, target.latency_model)
    rows = []
    for load in options.loads:
        for way in options.ways:
            policy, _, placement = way.partition(":")
            runs = []
            for seed in options.seeds:
                offered = simulated_load(scenario, seed=seed, rate_rps=load * capacity)
                fitted = with_room_for(placed(target, placement), scenario.name, offered.longest)
                runs.append(simulate_load(offered, fitted, contracts, [], seed=seed, policy=policy))
            row = summed_up(load, policy, placement, runs, target)
            rows.append(row)
            if not options.json:
                each = "  ".join(
                    f"{name} {share:.1%} ({row.on_slow[name]:.0%} on slow: {row.met_by_kind[name][1]:.1%})"
                    for name, share in row.contracts.items()
                )
                print(
                    f"load {load:.2f} ({load * capacity:.0f}/s) {policy:>11} {placement:<8} met {row.attainment:.1%} "
                    f"({row.least:.1%}–{row.most:.1%})  {each}",
                    flush=True,
                )
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))


def placed(target: SimulationTarget, placement: str) -> SimulationTarget:
    """The target with this placement."""
    return replace(target, limits=msgspec.structs.replace(target.limits, placement=placement))


def summed_up(load: float, policy: str, placement: str, runs: list, target: SimulationTarget) -> Row:
    """One row of all seeds."""
    slow = {spec.domain_id for spec in target.domains if spec.kind != target.domains[0].kind}
    shares = [fmean(bool(met) for met in run.requests.met) for run in runs]
    fates = [fate for run in runs for fate in run.requests]
    by_contract: dict[str, list[bool]] = {}
    on_slow: dict[str, list[bool]] = {}
    by_kind: dict[str, tuple[list[bool], list[bool]]] = {}
    for fate in fates:
        by_contract.setdefault(fate.contract_id, []).append(bool(fate.met))
        is_slow = bool(fate.domain_ids) and fate.domain_ids[-1] in slow
        on_slow.setdefault(fate.contract_id, []).append(is_slow)
        by_kind.setdefault(fate.contract_id, ([], []))[is_slow].append(bool(fate.met))
    return Row(
        load,
        policy,
        placement,
        fmean(shares),
        min(shares),
        max(shares),
        {name: fmean(met) for name, met in sorted(by_contract.items())},
        {name: fmean(each) for name, each in sorted(on_slow.items())},
        {name: (fmean(fast or [True]), fmean(each or [True])) for name, (fast, each) in sorted(by_kind.items())},
    )


if __name__ == "__main__":
    main()
