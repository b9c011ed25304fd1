"""What `superinfer serve` settles before it starts anything: each check ends in one clear error or a note."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

from superinfer.cli.console import err, progress_bar
from superinfer.cli.profile import ensure_profile
from superinfer.cli.serve.command import API_KEY_VARIABLE
from superinfer.contracts.contract import SLOContract
from superinfer.contracts.errors import UsageError
from superinfer.executor.config import DomainGroup, EngineConfig
from superinfer.executor.model.config_fields import ConfigFields, read_json_object
from superinfer.executor.models.catalog import resolve_model
from superinfer.executor.models.source import ModelSource
from superinfer.profiler.feasibility import UnattainableContractError, shortfalls
from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.config import SchedulerConfig
from superinfer.scheduler.decay import load_decay_profile
from superinfer.scheduler.domain_kind import DomainKind
from superinfer.scheduler.fault_map import FaultMap, load_fault_map, resolve_fault_map
from superinfer.scheduler.ledger import DeviceBandwidth
from superinfer.scheduler.policies.planner_config import planner_from_mapping
from superinfer.scheduler.policies.registry import check_policy

DEFAULT_CONTEXT_LIMIT = 8192


def note(text: str) -> None:
    """A line for people, on stderr."""
    err.print(f"note: {text}", markup=False, highlight=False, soft_wrap=True)


def api_keys(given: list[str] | None) -> tuple[str, ...]:
    """The keys of the command line and of the environment, which child processes need not inherit."""
    keys = [*(given or []), *os.environ.pop(API_KEY_VARIABLE, "").split()]
    if any(not key.strip() or any(character.isspace() for character in key) for key in keys):
        raise UsageError("--api-key: a key is empty or holds white space; give one word")
    return tuple(keys)


def check_scheduling(policy: str, decay_profile: Path | None) -> None:
    """UsageError unless the policy is known and the decay profile, where one is named, can be used."""
    check_policy(policy)
    if decay_profile is None:
        return
    if not decay_profile.is_file():
        raise UsageError(f"--decay-profile {decay_profile} is not a file; `superinfer tune --out FILE` writes one")
    _, planner = load_decay_profile(decay_profile)
    planner_from_mapping(planner, str(decay_profile))


def all_contract_ids(contracts: Iterable[SLOContract]) -> list[str]:
    """What requests may name: every service, and every sub-task as "service/sub"."""
    return [
        contract_id
        for contract in contracts
        for contract_id in (contract.service_id, *(f"{contract.service_id}/{name}" for name in contract.sub_slos))
    ]


def read_fault_map(path: Path | None, contract_ids: list[str], domains: int) -> FaultMap:
    """The map of `--fault-domains`, held against the contracts and domains there are; empty without one."""
    if path is None:
        return {}
    domain_ids = [str(number) for number in range(domains)]
    return resolve_fault_map(load_fault_map(path), domain_ids, contract_ids=contract_ids, source=str(path))


def find_model(model: str) -> ModelSource:
    """Resolve MODEL, with a progress bar while it is fetched and converted."""
    with progress_bar() as progress:
        tasks = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total)
            progress.update(tasks[stage], completed=done, total=total)

        return resolve_model(model, progress=report)


def context_length(source: ModelSource, asked: int | None) -> int:
    """The context to serve: as asked, else the model's own, up to DEFAULT_CONTEXT_LIMIT."""
    file = source.directory / "config.json"
    own = ConfigFields(read_json_object(file), str(file)).size("max_position_embeddings", DEFAULT_CONTEXT_LIMIT)
    if asked is not None and asked > own:
        raise UsageError(f"--max-model-len {asked} is more than the {own} tokens that {source.name} can take")
    return min(own, DEFAULT_CONTEXT_LIMIT) if asked is None else asked


def engine_config(
    source: ModelSource,
    *,
    contracts: list[SLOContract],
    policy: str,
    domains: int,
    dtype: Literal["auto", "float32", "bfloat16", "int8"],
    random_weights: bool,
    kv_cache_bytes: int | None,
    max_model_len: int,
    decay_profile: Path | None,
    fault_map: FaultMap,
    groups: list[DomainGroup],
) -> EngineConfig:
    """What the engine is started with; the model is profiled here on its first use on this machine.

    With `groups` domains are of their kinds.
    """
    if groups:
        profile_path = groups[0].profile_path
    else:
        profile_path = str(ensure_profile(source, dtype, random_weights=random_weights, console=err))
    return EngineConfig(
        model_dir=str(source.directory),
        profile_path=profile_path,
        domains=domains,
        dtype=dtype,
        random_weights=random_weights,
        kv_cache_bytes=kv_cache_bytes,
        scheduler=SchedulerConfig(
            policy=policy,
            max_model_len=max_model_len,
            decay_profile_path=None if decay_profile is None else str(decay_profile),
            fault_domains=fault_map,
        ),
        contracts=contracts,
        groups=groups,
    )


def check_attainable(
    contracts: list[SLOContract], model: LatencyModel | Callable[[SLOContract], LatencyModel], *, allow: bool
) -> None:
    """UnattainableContractError where a bound is below what one token takes; a note for each where let in."""
    short = shortfalls(contracts, model)
    if short and not allow:
        raise UnattainableContractError(short)
    for check in short:
        note(f"accepted though out of reach: {check}")


def note_unreserved(contracts: Iterable[SLOContract], bandwidth_gb_per_s: float) -> None:
    """A note for each contract whose bandwidth cannot be kept: no device has so much."""
    for contract in contracts:
        wanted = contract.resources.reserved_bandwidth_gb_per_s
        if wanted is None:
            continue
        if wanted > (most := DeviceBandwidth("", bandwidth_gb_per_s).reservable_gb_per_s):
            note(
                f"contract {contract.service_id} reserves {wanted:g} GB/s; at most {most:.1f} GB/s of a domain can be, "
                "so its requests will be refused"
            )


def note_unserved(contracts: Iterable[SLOContract], kinds: Sequence[DomainKind]) -> None:
    """A note for each contract that permits none of the kinds of domains that there are."""
    known = ", ".join(f"{kind.kind_id} ({kind.devices} × {kind.device_type}, {kind.precision})" for kind in kinds)
    for contract in contracts:
        if kinds and not any(kind.permits(contract) for kind in kinds):
            note(
                f"contract {contract.service_id}: no domain has the devices and the precision it asks for, so its "
                f"requests will be refused; there are: {known}"
            )


def note_other_devices(contracts: Iterable[SLOContract], device: str) -> None:
    """A note for each contract that asks for more devices, or another kind, than a domain of this server is."""
    for contract in contracts:
        wanted = contract.resources
        if wanted.min_gpu_count > 1:
            note(
                f"contract {contract.service_id}: resource_constraints.min_gpu_count is {wanted.min_gpu_count}; a "
                f"domain of this server is one worker on {device}, and its bounds are checked against that"
            )
        if wanted.preferred_gpu_type is not None and wanted.preferred_gpu_type.lower() not in device.lower():
            note(f"contract {contract.service_id}: prefers {wanted.preferred_gpu_type}; this server has {device}")
