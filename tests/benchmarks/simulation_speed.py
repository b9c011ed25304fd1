"""How fast the cluster simulator is: virtual seconds and requests per second of one core.

    python tests/benchmarks/simulation_speed.py [--policy slack fcfs] [--requests 5000] [--load 0.1 0.5]
        [--topology h100-4x8] [--model llama-3-70b] [--trace FILE] [--json]

Without --trace the load is that of cluster-mixed. With one it is a single class with the trace's arrivals and lengths,
cut off at what the model's context holds, at the trace's own rate (or at each --load), from its start again where
--requests goes beyond its end. Time is CPU time of the process, which other work on the machine hardly changes. A
million requests are simulated where --requests says so; else the last column scales the time up.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from superinfer.cli.bench.bounds import build_contracts
from superinfer.cli.bench.capacity import capacity_rps
from superinfer.cli.bench.scenario import Scenario, load_scenario, override, parse_scenario
from superinfer.cli.bench.simulated_load import simulated_load
from superinfer.cli.bench.target import SimulationTarget, cluster_target, with_room_for
from superinfer.cli.bench.workload import offered_rate
from superinfer.executor.simulation.loop import simulate

MILLION = 1_000_000
LONGEST_OUTPUT = 1000

TRACED = """
name: traced
requests: 1
arrival: {{process: trace, file: {file}}}
classes:
  - service_id: chat
    share: 1
    prompt_tokens: {{kind: trace, high: {longest_prompt}}}
    output_tokens: {{kind: trace, high: {longest_output}}}
    slo: {{slo_scale: 3}}
"""


@dataclass(frozen=True, slots=True)
class Speed:
    """One run. `load` is the offered rate over the capacity of the mix, times are in seconds."""

    policy: str
    load: float
    requests: int
    attainment: float
    virtual_s: float
    cpu_s: float
    steps: int
    peak_memory_mb: float

    @property
    def times_real(self) -> float:
        """Virtual seconds per second of one core."""
        return self.virtual_s / self.cpu_s

    @property
    def requests_per_s(self) -> float:
        """Simulated requests per second of one core."""
        return self.requests / self.cpu_s


def measure(scenario: Scenario, target: SimulationTarget, policy: str, load: float | None, seed: int) -> Speed:
    """Simulate the scenario at one load and take the time, that of drawing the load included."""
    kv_blocks = target.domains[0].kv_blocks
    capacity = capacity_rps(target, scenario, len(target.domains), limits=target.limits, kv_blocks=kv_blocks)
    rate = offered_rate(scenario, capacity) if load is None else load * capacity
    contracts = build_contracts(scenario, target.latency_model)
    started_s = time.process_time()
    offered = simulated_load(scenario, seed=seed, rate_rps=rate)
    fitted = with_room_for(target, scenario.name, offered.longest)
    result = simulate(
        offered.requests(),
        contracts=list(contracts.values()),
        model=fitted.latency_model,
        config=msgspec.structs.replace(fitted.limits, policy=policy),
        domains=fitted.domains,
        sigma=fitted.sigma,
        seed=seed,
    )
    return Speed(
        policy=policy,
        load=rate / capacity,
        requests=len(offered),
        attainment=sum(map(bool, result.requests.met)) / len(offered),
        virtual_s=result.duration_s,
        cpu_s=time.process_time() - started_s,
        steps=result.steps,
        peak_memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", nargs="+", default=["slack", "fcfs"])
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--load", nargs="+", type=float)
    parser.add_argument("--topology", type=Path, default=Path("h100-4x8"))
    parser.add_argument("--model", default="llama-3-70b")
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    target = cluster_target(options.model, options.topology, "auto")
    if options.trace is None:
        scenario = load_scenario("cluster-mixed")
        loads = options.load or [0.1, 0.5]
    else:
        longest_prompt = (target.max_position or 8192) - LONGEST_OUTPUT
        text = TRACED.format(file=options.trace.resolve(), longest_prompt=longest_prompt, longest_output=LONGEST_OUTPUT)
        scenario = parse_scenario(text, "traced")
        loads = options.load or [None]
    scenario = override(scenario, {"requests": options.requests, "domains": len(target.domains)})
    speeds = [measure(scenario, target, policy, load, options.seed) for policy in options.policy for load in loads]
    if options.json:
        print(json.dumps([asdict(speed) for speed in speeds], indent=2))
        return
    print(f"{scenario.name} · {target.model} on {target.device} · SIMULATED")
    for speed in speeds:
        print(
            f"{speed.policy:>12} at load {speed.load:.2f}: {speed.requests:,} requests "
            f"in {speed.cpu_s:.1f} s of one core, {speed.times_real:,.0f} × real time, "
            f"{speed.requests_per_s:,.0f} requests/s, "
            f"{speed.cpu_s / speed.steps * 1e6:,.0f} µs a step, {speed.peak_memory_mb:,.0f} MiB; "
            f"a million: {MILLION / speed.requests_per_s / 60:.1f} min (met {speed.attainment:.1%})"
        )


if __name__ == "__main__":
    main()
