"""A whole bench: from its options to the summary and the run folder."""

from __future__ import annotations

import platform
import shutil
import tempfile
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from superinfer.cli.bench.announce import announce, note_run
from superinfer.cli.bench.calibration import calibrate_runs, journal_path
from superinfer.cli.bench.options import BenchOptions
from superinfer.cli.bench.plan import Plan, engine_config, make_plan, resolve_scenario
from superinfer.cli.bench.run import run_policy
from superinfer.cli.bench.served_target import FLAG
from superinfer.cli.bench.simulated_session import run_simulated_bench
from superinfer.cli.domain_kinds import kind_of_each_domain, predicted_kinds
from superinfer.contracts.errors import EngineError, UsageError
from superinfer.results.clairvoyant import Offer, clairvoyant_bound
from superinfer.results.run_folder import check_run_folder, write_run_folder
from superinfer.results.summary import PolicyRun, summarize


@dataclass(slots=True)
class BenchResult:
    """The summary, where it was written, and why the engine failed, if it did."""

    summary: dict[str, Any]
    folder: Path
    engine_error: str | None


def run_bench(options: BenchOptions) -> BenchResult:
    """Run every policy and write the run folder; an interrupted or failed run is written as far as it came.

    Everything that can be wrong with the options is raised before the first engine starts.
    """
    scenario = resolve_scenario(options)
    folder = options.out or Path("runs") / f"{scenario.name}-{datetime.now():%Y%m%d-%H%M%S}"
    check_run_folder(folder, force=options.force)
    if options.simulate and options.journal:
        raise UsageError("--journal: keeps what an engine's scheduler was told; it has no meaning with --simulate")
    if options.calibrate_from and not options.simulate:
        raise UsageError(f"{FLAG}: is for simulated devices; it needs --simulate")
    if options.calibrate_from and options.kinds:
        raise UsageError(f"{FLAG}: domains of several kinds cannot be calibrated; leave out --domain-kind")
    if folder.resolve() in map(Path.resolve, options.calibrate_from):
        raise UsageError(f"--out {folder}: is a run to calibrate from, which would be replaced; name another folder")
    if options.simulate:
        return BenchResult(*run_simulated_bench(options, scenario, folder), engine_error=None)
    plan = make_plan(options, scenario)
    announce(
        scenario,
        plan.load.contracts,
        options.policies,
        requests=len(plan.load.workload),
        sending_s=plan.load.workload[-1].offset_s,
        rate_rps=plan.rate_rps,
        capacity_rps=plan.capacity_rps,
        kinds=predicted_kinds(plan.groups),
    )
    with tempfile.TemporaryDirectory() as kept:
        runs, engine_error = _run_policies(options, plan, Path(kept))
        if options.journal:
            calibrate_runs(runs, Path(kept))
        summary = _summary(options, plan, runs, engine_error)
        written = write_run_folder(
            folder, config=_config(options, plan), summary=summary, runs=runs, force=options.force
        )
        for journal in Path(kept).iterdir():
            shutil.move(journal, written / journal.name)
    return BenchResult(summary, written, engine_error)


def _run_policies(options: BenchOptions, plan: Plan, journals: Path) -> tuple[list[PolicyRun], str | None]:
    """The runs that were done, and why the engine failed in the last, if it did; their journals where asked for."""
    runs: list[PolicyRun] = []
    engine_error: str | None = None
    for policy in options.policies:
        journal = journal_path(journals, policy) if options.journal else None
        result = run_policy(engine_config(options, plan, policy, journal), plan.load)
        runs.append(result.run)
        note_run(result.run)
        engine_error = result.engine_error
        if result.run.interrupted or engine_error:
            break
    return runs, engine_error


def _summary(options: BenchOptions, plan: Plan, runs: list[PolicyRun], engine_error: str | None) -> dict[str, Any]:
    return summarize(
        runs,
        scenario=plan.scenario.name,
        model=plan.source.name,
        device=plan.profile.device.name,
        simulated=False,
        extra={
            "dtype": plan.profile.dtype,
            "weight_dtype": plan.profile.weight_dtype or plan.profile.dtype,
            "seed": options.seed,
            "domains": plan.scenario.domains,
            "rate_rps": plan.rate_rps,
            "capacity_rps": plan.capacity_rps,
            "load": plan.rate_rps / plan.capacity_rps,
            "clairvoyant_bound": _clairvoyant_bound(options, plan),
            "engine_error": engine_error,
        },
        kind_of={str(number): kind for number, kind in enumerate(kind_of_each_domain(plan.groups))},
    )


def _clairvoyant_bound(options: BenchOptions, plan: Plan) -> dict[str, Any] | None:
    """What the whole load would allow a scheduler that knew it beforehand; see `superinfer.results.clairvoyant`. None
    for domains of several kinds, of which the bound knows nothing.
    """
    if plan.groups:
        return None
    offers = [
        Offer(planned.service_id, planned.offset_s, len(planned.prompt_token_ids), planned.output_tokens)
        for planned in plan.load.workload
    ]
    engine = engine_config(options, plan, options.policies[0])
    bound = clairvoyant_bound(
        offers,
        plan.load.contracts,
        plan.load.model,
        domains=engine.domains,
        max_running=engine.scheduler.max_running,
    )
    return None if bound is None else msgspec.to_builtins(bound)


def _config(options: BenchOptions, plan: Plan) -> dict[str, Any]:
    """config.yaml: what is needed to run this again, and what it ran on."""
    return {
        "options": {
            **msgspec.to_builtins(options, enc_hook=str),  # paths have no other form
            "fault_domains": msgspec.to_builtins(plan.fault_map),
        },
        "scenario": plan.scenario.model_dump(mode="json", exclude_none=True),
        "rate_rps": plan.rate_rps,
        "capacity_rps": plan.capacity_rps,
        "contracts": [msgspec.to_builtins(contract) for contract in plan.load.contracts.values()],
        "model": {"name": plan.source.name, "directory": str(plan.source.directory)},
        "domain_kinds": [msgspec.to_builtins(group) for group in plan.groups],
        "profile": {"path": str(plan.profile_path), "created": plan.profile.created},
        "device": msgspec.to_builtins(plan.profile.device),
        "max_model_len": plan.max_model_len,
        "versions": {
            "superinfer": version("superinfer"),
            "torch": version("torch"),
            "python": platform.python_version(),
        },
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def raise_engine_error(result: BenchResult) -> None:
    """EngineError (exit code 7) where the engine failed, after the results have been shown."""
    if result.engine_error:
        raise EngineError(f"{result.engine_error}; what was measured until then is in {result.folder}")
