"""`superinfer bench`: put policies under the same load and see which contracts hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from superinfer.cli.console import err, out
from superinfer.cli.domain_options import DomainKindFlags, DomainsFile
from superinfer.cli.kv_options import (
    DecayProfilePath,
    HostKVMemory,
    KeepKV,
    PrefixCache,
    SaveIntervalMs,
    SaveStrategy,
)

if TYPE_CHECKING:
    from superinfer.cli.bench.session import BenchResult
    from superinfer.executor.config import DType

DEFAULT_POLICIES = ("slack", "fcfs", "round_robin")
DTYPES = ("auto", "float32", "bfloat16", "int8")
WIDTH_IN_FILES = 120
CLUSTER_PREFIX = "cluster-"

CalibrateFrom = Annotated[
    list[Path] | None,
    typer.Option(
        help="With --simulate: a run folder with journals (--journal) of this model on this machine; simulated devices "
        "take what steps took there. Repeat for several."
    ),
]


def bench(
    scenario: Annotated[
        str,
        typer.Argument(
            help="mixed, jitter, fault or precision; for --topology cluster-mixed, cluster-jitter, cluster-fault or "
            "cluster-unequal; or a scenario file (YAML).",
            metavar="[SCENARIO]",
        ),
    ] = "mixed",
    model: Annotated[
        str | None,
        typer.Option(
            help="Known model name, local directory or hub id; for --topology also a config.json or llama-3-70b and "
            "its like. Default: smollm2-135m-instruct, with --topology llama-3-70b."
        ),
    ] = None,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="No worker process and no weights: the latency model, a virtual clock.")
    ] = False,
    topology: Annotated[
        Path | None,
        typer.Option(help="Simulate this cluster: a topology file, or h100-4x8. Default: this machine as profiled."),
    ] = None,
    calibrate_from: CalibrateFrom = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="A policy to run; repeat to compare. Default: slack, fcfs and round_robin."),
    ] = None,
    requests: Annotated[int | None, typer.Option("--requests", help="Requests to offer.", min=1)] = None,
    load: Annotated[float | None, typer.Option(help="Offered rate as a share of capacity.")] = None,
    rate: Annotated[float | None, typer.Option(help="Offered rate in requests/s, instead of --load.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of arrivals, lengths and prompts.", min=0)] = 0,
    domains: Annotated[int | None, typer.Option(help="Fault domains, one worker process each.", min=1)] = None,
    domain_kind: DomainKindFlags = None,
    domains_file: DomainsFile = None,
    fault_domains: Annotated[
        Path | None, typer.Option(help="YAML file of contracts and the domains that serve them. Default: all by all.")
    ] = None,
    admission: Annotated[
        str,
        typer.Option(help="accept, or refuse: turn requests away that load would make late (they count as missed)."),
    ] = "accept",
    slo_scale: Annotated[float, typer.Option(help="Multiplies every bound of the scenario.")] = 1.0,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or int8 (weights alone).")] = "auto",
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Use the model's config with random weights.")
    ] = False,
    kv_cache_memory: Annotated[
        str | None, typer.Option(help="KV cache of each domain, for example 512MiB. Default: from free memory.")
    ] = None,
    host_kv_memory: HostKVMemory = None,
    checkpoint: KeepKV = True,
    save_interval_ms: SaveIntervalMs = None,
    save_strategy: SaveStrategy = "incremental",
    prefix_cache: PrefixCache = False,
    decay_profile: DecayProfilePath = None,
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="Run folder. Default: runs/<scenario>-<date>-<time>.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier run in --out.")] = False,
    journal: Annotated[
        bool,
        typer.Option(
            "--journal",
            help="Keep each policy's scheduler calls in the run folder, and say how well requests were predicted.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json on stdout, nothing else.")] = False,
) -> None:
    """Offer the same requests to each policy on real workers, or in simulation; report attainment of every contract.

    Ends in a table, pictures and a run folder. Exit code 7 when the engine failed.
    """
    from superinfer.cli.bench.options import BenchOptions
    from superinfer.cli.bench.session import raise_engine_error, run_bench
    from superinfer.cli.domain_kinds import asked_kinds
    from superinfer.cli.host_memory import checkpoints
    from superinfer.cli.serve.sizes import parse_bytes

    options = BenchOptions(
        scenario=scenario,
        model=model,
        simulate=simulate,
        topology=topology,
        calibrate_from=tuple(calibrate_from or ()),
        policies=list(policy or DEFAULT_POLICIES),
        requests=requests,
        load=load,
        rate_rps=rate,
        seed=seed,
        domains=domains,
        kinds=tuple(asked_kinds(domain_kind, domains_file, domains)),
        fault_domains=fault_domains,
        admission=_checked_admission(admission),
        slo_scale=slo_scale,
        dtype=_checked_dtype(dtype),
        random_weights=random_weights,
        kv_cache_bytes=parse_bytes(kv_cache_memory, "--kv-cache-memory") if kv_cache_memory else None,
        host_kv_memory=host_kv_memory,
        checkpoint=checkpoints(checkpoint, save_interval_ms, save_strategy, host_kv_memory),
        prefix_cache=prefix_cache,
        decay_profile=decay_profile,
        out=out_dir,
        force=force,
        journal=journal,
    )
    if scenario.startswith(CLUSTER_PREFIX) and topology is None:
        err.print(f"note: {scenario} has bounds for accelerators; --topology h100-4x8 simulates some", highlight=False)
    result = run_bench(options)
    _report(result, as_json=as_json)
    raise_engine_error(result)
    if result.summary["interrupted"]:
        raise typer.Exit(130)


def _report(result: BenchResult, *, as_json: bool) -> None:
    """Results on stdout: the table, or the summary as JSON."""
    if as_json:
        typer.echo(json.dumps(result.summary, ensure_ascii=False, allow_nan=False))
    else:
        from rich.console import Console

        from superinfer.results.calibration import calibration_line
        from superinfer.results.table import render_table

        console = out if out.is_terminal else Console(width=WIDTH_IN_FILES)
        console.print(render_table(result.summary))
        for line in (*kind_lines(result), *fault_lines(result)):
            out.print(line, highlight=False, markup=False, soft_wrap=True)
        for run in result.summary["runs"]:
            if "predictions" in run:
                line = calibration_line(run["policy"], run["predictions"])
                out.print(line, highlight=False, markup=False, soft_wrap=True)
    err.print(f"run folder: {result.folder}", highlight=False, soft_wrap=True)


def kind_lines(result: BenchResult) -> list[str]:
    """Where domains are of several kinds one line per policy and contract: how many of its requests ran on each."""
    return [
        f"{run['policy']}: {service_id} ran on "
        + ", ".join(f"{kind} {part['requests']} ({part['met']} met)" for kind, part in figures["served_by"].items())
        for run in result.summary["runs"]
        for service_id, figures in run["contracts"].items()
        if "served_by" in figures
    ]


def fault_lines(result: BenchResult) -> list[str]:
    """One line per injected fault."""
    lines = []
    for run in result.summary["runs"]:
        for fault in run["faults"]:
            up_s = fault["time_until_up_s"]
            verified = (
                f" · tokens equal to an undisturbed run: {fault['tokens_verified']} of {fault['tokens_compared']}"
                if "tokens_compared" in fault
                else ""
            )
            lines.append(
                f"{run['policy']}: {fault['kind']} of domain {fault['domain_id']} at {fault['time_s']:.1f} s · "
                f"{fault['moved_requests']} requests moved · longest token gap {fault['longest_gap_ms']:,.0f} ms · "
                f"up again after {'–' if up_s is None else f'{up_s:.1f} s'} · lost {fault['lost']}, "
                f"duplicated {fault['duplicated']}{verified}"
            )
    return lines


def _checked_admission(admission: str) -> Literal["accept", "refuse"]:
    from superinfer.contracts.errors import UsageError

    if admission not in ("accept", "refuse"):
        raise UsageError(f"--admission {admission!r} is unknown; accepted: accept, refuse")
    return "refuse" if admission == "refuse" else "accept"


def _checked_dtype(dtype: str) -> DType:
    from superinfer.contracts.errors import UsageError

    if dtype not in DTYPES:
        raise UsageError(f"--dtype {dtype!r} is unknown; accepted: {', '.join(DTYPES)}")
    return cast("DType", dtype)
