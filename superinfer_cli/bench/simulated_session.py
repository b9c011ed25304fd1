"""A whole simulated bench: from its options to the summary and the run folder, without a worker process."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from superinfer.cli.bench.announce import announce, note_run
from superinfer.cli.bench.bounds import build_contracts
from superinfer.cli.bench.capacity import offered_to
from superinfer.cli.bench.options import CLUSTER_MODEL, DEFAULT_MODEL, BenchOptions
from superinfer.cli.bench.plan import decay_profile_path, requested_fault_map
from superinfer.cli.bench.scenario import Scenario
from superinfer.cli.bench.served_target import FLAG, as_served
from superinfer.cli.bench.simulated_load import SimulatedLoad, simulated_load
from superinfer.cli.bench.simulated_run import run_simulated
from superinfer.cli.bench.target import SimulationTarget, cluster_target, local_target, with_room_for
from superinfer.cli.console import err
from superinfer.contracts.contract import SLOContract
from superinfer.contracts.errors import UsageError
from superinfer.results.clairvoyant import Offer, clairvoyant_bound
from superinfer.results.run_folder import write_run_folder
from superinfer.results.summary import PolicyRun, summarize

MOST_BOUNDED = 20_000
"""Requests beyond which the clairvoyant bound, whose cost grows with their square, is left out."""


def run_simulated_bench(options: BenchOptions, scenario: Scenario, folder: Path) -> tuple[dict[str, Any], Path]:
    """Simulate every policy under the same load and write the run folder; the summary says that it is simulated.

    A run that is interrupted leaves the policies that were done.
    """
    target = _target(options, scenario)
    offered = offered_to(target, scenario)
    scenario, capacity, rate = offered.scenario, offered.capacity_rps, offered.rate_rps
    load = simulated_load(scenario, seed=options.seed, rate_rps=rate)
    target = with_room_for(target, scenario.name, load.longest)
    fault_map = requested_fault_map(options, scenario, [spec.domain_id for spec in target.domains])
    limits = msgspec.structs.replace(
        target.limits,
        fault_domains=fault_map,
        admission=options.admission,
        decay_profile_path=decay_profile_path(options),
    )
    target = replace(target, limits=limits)
    contracts = build_contracts(scenario, target.latency_model, slo_scale=options.slo_scale)
    announce(
        scenario,
        contracts,
        options.policies,
        requests=len(load),
        sending_s=load.sending_s,
        rate_rps=rate,
        capacity_rps=capacity,
        simulated=True,
        kinds=target.kinds,
    )
    runs, is_interrupted = _run_policies(options, scenario, load, target, contracts)
    summary = summarize(
        runs,
        scenario=scenario.name,
        model=target.model,
        device=target.device,
        simulated=True,
        extra={
            "dtype": target.dtype,
            "weight_dtype": target.weight_dtype or target.dtype,
            "seed": options.seed,
            "domains": scenario.domains,
            "rate_rps": rate,
            "capacity_rps": capacity,
            "load": rate / capacity,
            "clairvoyant_bound": _clairvoyant_bound(load, contracts, target),
            "engine_error": None,
        },
        kind_of={spec.domain_id: spec.kind for spec in target.domains if target.kinds},
    )
    summary["interrupted"] = is_interrupted
    config = {
        "simulated": True,
        "options": msgspec.to_builtins(options, enc_hook=str),  # paths have no other form
        "scenario": scenario.model_dump(mode="json", exclude_none=True),
        "rate_rps": rate,
        "capacity_rps": capacity,
        "contracts": [msgspec.to_builtins(contract) for contract in contracts.values()],
        "model": {"name": target.model, "dtype": target.dtype},
        "target": {
            "device": target.device,
            "sigma": target.sigma,
            "drift": msgspec.to_builtins(target.drift),
            "block_copy_s": target.block_copy_s,
            "restart_s": target.restart_s,
            "limits": msgspec.to_builtins(target.limits),
            "domains": {spec.domain_id: spec.kv_blocks for spec in target.domains},
            **target.origin,
        },
        "versions": {"superinfer": version("superinfer")},
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
    }
    written = write_run_folder(folder, config=config, summary=summary, runs=runs, force=options.force)
    return summary, written


def _target(options: BenchOptions, scenario: Scenario) -> SimulationTarget:
    if options.topology is None:
        target = local_target(
            options.model or DEFAULT_MODEL,
            options.dtype,
            domains=scenario.domains,
            random_weights=options.random_weights,
            kv_cache_bytes=options.kv_cache_bytes,
            asked=options.kinds,
        )
        return as_served(target, options.calibrate_from) if options.calibrate_from else target
    for flag, given in (
        ("--domains", options.domains),
        ("--domain-kind", options.kinds or None),
        ("--kv-cache-memory", options.kv_cache_bytes),
        ("--random-weights", options.random_weights or None),
        ("--host-kv-memory", options.host_kv_memory),
        (FLAG, options.calibrate_from or None),
    ):
        if given is not None:
            raise UsageError(f"{flag}: has no meaning with --topology, whose devices decide it")
    return cluster_target(options.model or CLUSTER_MODEL, options.topology, options.dtype)


def _run_policies(
    options: BenchOptions,
    scenario: Scenario,
    load: SimulatedLoad,
    target: SimulationTarget,
    contracts: dict[str, SLOContract],
) -> tuple[list[PolicyRun], bool]:
    """The runs that were done, and whether the user stopped before the last."""
    runs: list[PolicyRun] = []
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeElapsedColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    )
    with bar:
        for policy in options.policies:
            task = bar.add_task(f"{policy} (simulated)", total=len(load))
            try:
                run = run_simulated(
                    policy,
                    load,
                    target,
                    contracts,
                    scenario.faults,
                    seed=options.seed,
                    on_progress=partial(_show, bar, task),
                )
            except KeyboardInterrupt:
                if not runs:
                    raise
                return runs, True
            bar.remove_task(task)
            note_run(run)
            runs.append(run)
    return runs, False


def _show(bar: Progress, task: TaskID, done: int, now: float) -> None:
    bar.update(task, completed=done, description=f"{bar.tasks[-1].description.partition(',')[0]}, {now:,.0f} s")


def _clairvoyant_bound(
    load: SimulatedLoad, contracts: dict[str, SLOContract], target: SimulationTarget
) -> dict[str, Any] | None:
    """What the whole load would allow a scheduler that knew it beforehand; None for a load too long to
    compute it, and for unequal domains, of which the bound knows nothing."""
    if len(load) > MOST_BOUNDED or target.kinds:
        return None
    columns = zip(load.class_numbers, load.offsets_s, load.prompt_tokens, load.output_tokens, strict=True)
    offers = [
        Offer(load.service_ids[number], float(offset_s), int(prompt), int(output))
        for number, offset_s, prompt, output in columns
    ]
    bound = clairvoyant_bound(
        offers,
        contracts,
        target.latency_model,
        domains=len(target.domains),
        max_running=target.limits.max_running,
    )
    return None if bound is None else msgspec.to_builtins(bound)
