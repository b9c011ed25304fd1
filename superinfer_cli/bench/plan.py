"""What a bench settles before its first engine starts: scenario, model, profile, bounds, rate, every request."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from superinfer.cli.bandwidth import ensure_bandwidth
from superinfer.cli.bench.bounds import build_contracts
from superinfer.cli.bench.capacity import capacity_rps, domains_of
from superinfer.cli.bench.options import DEFAULT_MODEL, BenchOptions
from superinfer.cli.bench.run import Load, longest_request
from superinfer.cli.bench.scenario import Scenario, load_scenario, override
from superinfer.cli.bench.workload import Encode, build_warmup, build_workload, encode_by_hash, offered_rate
from superinfer.cli.console import err
from superinfer.cli.domain_kinds import make_groups, predicted_kinds
from superinfer.cli.host_memory import host_blocks
from superinfer.cli.profile import ensure_profile
from superinfer.contracts.errors import ModelError, UsageError
from superinfer.executor.config import DomainGroup, EngineConfig
from superinfer.executor.models.catalog import resolve_model
from superinfer.executor.models.source import ModelSource
from superinfer.executor.tokenizer import load_tokenizer
from superinfer.profiler.store import ModelProfile, load_profile
from superinfer.scheduler.config import SchedulerConfig
from superinfer.scheduler.decay import load_decay_profile
from superinfer.scheduler.fault_map import FaultMap, load_fault_map, resolve_fault_map
from superinfer.scheduler.policies.planner_config import planner_from_mapping
from superinfer.scheduler.policies.registry import check_policy


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is settled before the first engine starts."""

    scenario: Scenario
    source: ModelSource
    profile_path: Path
    profile: ModelProfile
    load: Load
    rate_rps: float
    capacity_rps: float
    max_model_len: int
    fault_map: FaultMap
    groups: list[DomainGroup]


def resolve_scenario(options: BenchOptions) -> Scenario:
    """The scenario with the command line's changes; UsageError for any option that is out of range."""
    for policy in options.policies:
        check_policy(policy)
    if twice := {policy for policy in options.policies if options.policies.count(policy) > 1}:
        raise UsageError(f"--policy {sorted(twice)[0]}: given twice; name each policy once")
    if options.load is not None and options.rate_rps is not None:
        raise UsageError("--load and --rate: give one of them")
    for flag, value in (("--load", options.load), ("--rate", options.rate_rps), ("--slo-scale", options.slo_scale)):
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise UsageError(f"{flag} {value}: a number above 0 is needed")
    if options.topology is not None and not options.simulate:
        raise UsageError("--topology: describes devices to simulate; give --simulate with it")
    if options.decay_profile is not None:
        _, planner = load_decay_profile(options.decay_profile)
        planner_from_mapping(planner, str(options.decay_profile))
    scenario = load_scenario(options.scenario)
    changes: dict[str, Any] = {}
    if options.requests is not None:
        changes["requests"] = options.requests
    if options.domains is not None:
        changes["domains"] = options.domains
    if options.kinds:
        changes["domains"] = sum(kind.domains for kind in options.kinds)
    if options.load is not None or options.rate_rps is not None:
        changes |= {"load": options.load, "rate_rps": options.rate_rps}
    return override(scenario, changes) if changes else scenario


def make_plan(options: BenchOptions, scenario: Scenario) -> Plan:
    """Find the model, its profile (measured on first use), the bounds, the rate, and every request."""
    fault_map = requested_fault_map(options, scenario, [str(number) for number in range(scenario.domains)])
    source = resolve_model(options.model or DEFAULT_MODEL, progress=_download_note())
    profile_path = ensure_profile(source, options.dtype, random_weights=options.random_weights, console=err)
    profile = load_profile(profile_path)
    model = profile.latency_model
    groups = requested_groups(options, source)
    unequal = domains_of(groups, predicted_kinds(groups)) if groups else None
    capacity = capacity_rps(profile, scenario, scenario.domains, unequal=unequal)
    rate = offered_rate(scenario, capacity)
    contracts = build_contracts(scenario, model, slo_scale=options.slo_scale)
    if any(contract.resources.reserved_bandwidth_gb_per_s for contract in contracts.values()):
        ensure_bandwidth()
    encode = _encoder(source, profile)
    load = Load(
        warmup=build_warmup(scenario, seed=options.seed, encode=encode),
        workload=build_workload(scenario, seed=options.seed, rate_rps=rate, encode=encode),
        contracts=contracts,
        faults=list(scenario.faults),
        model=model,
    )
    return Plan(
        scenario=scenario,
        source=source,
        profile_path=profile_path,
        profile=profile,
        load=load,
        rate_rps=rate,
        capacity_rps=capacity,
        max_model_len=_max_model_len(load, profile, scenario),
        fault_map=fault_map,
        groups=groups,
    )


def requested_groups(options: BenchOptions, source: ModelSource) -> list[DomainGroup]:
    """The kinds of domains that were asked for; empty where all are equal."""
    return make_groups(
        options.kinds,
        source,
        options.dtype,
        random_weights=options.random_weights,
        kv_cache_bytes=options.kv_cache_bytes,
        host_kv_memory=options.host_kv_memory,
        block_size=SchedulerConfig().block_size,
    )


def engine_config(options: BenchOptions, plan: Plan, policy: str, journal: Path | None = None) -> EngineConfig:
    """The engine under test; only the policy, and where its journal goes, differs between the runs of one bench."""
    return EngineConfig(
        model_dir=str(plan.source.directory),
        profile_path=str(plan.profile_path),
        domains=plan.scenario.domains,
        dtype=options.dtype,
        random_weights=options.random_weights,
        kv_cache_bytes=options.kv_cache_bytes,
        checkpoint=options.checkpoint,
        scheduler=SchedulerConfig(
            policy=policy,
            max_model_len=plan.max_model_len,
            host_blocks=host_blocks(options.host_kv_memory, plan.profile, SchedulerConfig().block_size),
            prefix_cache=options.prefix_cache,
            fault_domains=plan.fault_map,
            admission=options.admission,
            decay_profile_path=decay_profile_path(options),
        ),
        contracts=list(plan.load.contracts.values()),
        groups=plan.groups,
        journal_path=None if journal is None else str(journal),
    )


def decay_profile_path(options: BenchOptions) -> str | None:
    """The slack policy's settings, as the scheduler's configuration names them."""
    return None if options.decay_profile is None else str(options.decay_profile)


def requested_fault_map(options: BenchOptions, scenario: Scenario, domain_ids: list[str]) -> FaultMap:
    """The map of `--fault-domains`, held against the scenario's classes and the domains; empty without one."""
    if options.fault_domains is None:
        return {}
    return resolve_fault_map(
        load_fault_map(options.fault_domains),
        domain_ids,
        contract_ids=[each.service_id for each in scenario.classes],
        source=str(options.fault_domains),
    )


def _max_model_len(load: Load, profile: ModelProfile, scenario: Scenario) -> int:
    """The default, or what the longest request needs; UsageError where the model cannot hold that."""
    longest = longest_request([*load.workload, *load.warmup])
    limit = profile.architecture.max_position
    if limit is not None and longest > limit:
        raise UsageError(
            f"scenario {scenario.name}: a request of {longest} tokens does not fit the model's context of {limit}; "
            "shorten prompt_tokens or output_tokens"
        )
    wanted = max(SchedulerConfig().max_model_len, longest)
    return wanted if limit is None else min(wanted, limit)


def _encoder(source: ModelSource, profile: ModelProfile) -> Encode:
    """The model's own tokenizer; random weights may come without one."""
    try:
        return load_tokenizer(source.directory).encode
    except ModelError:
        if source.has_weights:
            raise
        return encode_by_hash(profile.architecture.vocab_size)


def _download_note() -> Callable[[str, int, int], None]:
    """Progress of a model's first use: one line per stage."""
    seen: set[str] = set()

    def note(stage: str, done: int, total: int) -> None:
        if stage not in seen:
            seen.add(stage)
            err.print(f"model: {stage}", highlight=False)

    return note
