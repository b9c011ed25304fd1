"""What a simulated bench runs on: this machine's workers as its profile knows them, or the cluster of a topology."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from superinfer.cli.bench.cluster_kind import cluster_kind
from superinfer.contracts.errors import ModelError, UsageError
from superinfer.profiler.architecture import ModelArchitecture, load_architecture
from superinfer.profiler.drift import Drift
from superinfer.profiler.known_architectures import known_architectures
from superinfer.profiler.latency_model import LatencyModel
from superinfer.profiler.roofline import Efficiency
from superinfer.profiler.static import BYTES_PER_ELEMENT, kv_bytes_per_token
from superinfer.profiler.store import latency_constants
from superinfer.scheduler.config import DomainSpec, SchedulerConfig
from superinfer.scheduler.domain_kind import DomainKind, speed_rank
from superinfer.scheduler.serving_groups import serving_groups
from superinfer.scheduler.topology import load_topology

if TYPE_CHECKING:
    from superinfer.cli.domain_kinds import KindOptions

LOCAL_RESTART_S = 0.5
"""From the death of a worker of this machine to its successor's being ready: process start, weights, kernels."""
LOCAL_CLIENT_S = 0.0025
"""From a client to the scheduler and back, messages and event loops of three processes on this machine's cores."""


@dataclass(frozen=True, slots=True)
class SimulationTarget:
    """Devices to simulate. `limits` holds the scheduler's limits, `sigma` the log-normal noise of each step's
    time and `drift` that of the device's speed. `latency_model` is what the scheduler is told and bounds are made of,
    `device_model` what the devices take where that is known to be another.

    `block_copy_s` is what a rotated KV block adds to a step, `restart_s` a dead domain's time until it serves again.
    `overhead_s` lies between two steps; a step is planned `lead_s` before the end of the one before, or when that has
    ended. Clients see everything `client_s` later. `weight_dtype` is that of weights where it is not `dtype`. `origin`
    says where the latency model comes from, for config.yaml.
    Where domains are unequal `kinds` says of which kinds, `copies_s` is `block_copy_s` by kind, and `latency_model` and
    `limits` are those of the fastest.
    """

    model: str
    device: str
    dtype: str
    latency_model: LatencyModel
    domains: list[DomainSpec]
    limits: SchedulerConfig
    sigma: float
    block_copy_s: float
    restart_s: float
    max_position: int | None
    origin: dict[str, Any]
    drift: Drift | None = None
    device_model: LatencyModel | None = None
    overhead_s: float = 0.0
    lead_s: float | None = None
    client_s: float = 0.0
    weight_dtype: str = ""
    kinds: tuple[DomainKind, ...] = ()
    copies_s: dict[str, float] = field(default_factory=dict)


def cluster_target(model: str, topology_path: Path, dtype: str) -> SimulationTarget:
    """Every tensor-parallel group of a topology as a domain, its latency predicted from the data sheet of its devices.

    Rotated KV moves over each device's own host link, all devices of a group at once, before the step's compute and not
    beside it. Groups of several kinds are domains of as many kinds. Raises UsageError and ModelError.
    """
    topology = load_topology(topology_path)
    name, architecture = find_architecture(model)
    groups, efficiency = serving_groups(topology), Efficiency()
    given = "bfloat16" if dtype == "auto" else dtype
    clusters = {group.kind_id: cluster_kind(topology, group, architecture, given, efficiency) for group in groups}
    kinds = [clusters[group.kind_id] for group in groups]
    fastest = min(clusters.values(), key=lambda each: speed_rank(each.kind.latency_model))
    serving, is_equal = topology.serving, len(clusters) == 1 and not fastest.kind.loses_precision
    limits = SchedulerConfig(max_step_tokens=serving.max_step_tokens, max_running=serving.max_running)
    first = fastest.kind
    return SimulationTarget(
        model=name,
        device=", ".join(
            f"{sum(kind is each for kind in kinds) * each.kind.devices} × {each.kind.device_type} in "
            f"{sum(kind is each for kind in kinds)} domain(s) of {each.kind.devices}"
            for each in clusters.values()
        ),
        dtype=", ".join(dict.fromkeys(each.kind.precision for each in clusters.values())),
        latency_model=first.latency_model,
        domains=[
            DomainSpec(group.domain_id, kind.kv_blocks, kind="" if is_equal else group.kind_id)
            for group, kind in zip(groups, kinds, strict=True)
        ],
        limits=first.limits(limits),
        sigma=efficiency.residual_sigma,
        block_copy_s=fastest.block_copy_s,
        restart_s=serving.restart_s,
        max_position=architecture.max_position,
        origin={
            "latency_model": "roofline",
            "topology": msgspec.to_builtins(topology),
            "data_sheet": msgspec.to_builtins(fastest.sheet),
            "efficiency": msgspec.to_builtins(efficiency),
            "weights_gb": architecture.parameters * BYTES_PER_ELEMENT[first.precision] / 1e9,
            "constants": msgspec.to_builtins(latency_constants(first.latency_model)),
            "kinds": {} if is_equal else {each.kind.kind_id: each.origin() for each in clusters.values()},
        },
        kinds=() if is_equal else tuple(each.kind for each in clusters.values()),
        copies_s={} if is_equal else {each.kind.kind_id: each.block_copy_s for each in clusters.values()},
    )


def local_target(
    model: str,
    dtype: Any,
    *,
    domains: int,
    random_weights: bool,
    kv_cache_bytes: int | None,
    asked: Sequence[KindOptions] = (),
) -> SimulationTarget:
    """This machine's workers, by the measured profile of the model (measured now where there is none).

    `asked` are their kinds, where they are of several.
    """
    from superinfer.cli.console import err
    from superinfer.cli.domain_kinds import kind_of_each_domain, make_groups, predicted_kinds
    from superinfer.cli.profile import ensure_profile
    from superinfer.executor.kv_cache import plan_device_blocks
    from superinfer.executor.model.memory import available_memory_bytes
    from superinfer.executor.models.catalog import resolve_model
    from superinfer.executor.pipeline import STEP_GAP_S, USUAL_LEAD_S
    from superinfer.profiler.store import load_profile

    source = resolve_model(model)
    path = ensure_profile(source, dtype, random_weights=random_weights, console=err)
    profile = load_profile(path)
    limits = SchedulerConfig()
    kv_blocks = plan_device_blocks(
        bytes_per_block=limits.block_size * kv_bytes_per_token(profile.architecture, profile.dtype),
        block_size=limits.block_size,
        max_model_len=min(limits.max_model_len, profile.architecture.max_position or limits.max_model_len),
        host_blocks=limits.host_blocks,
        kv_cache_bytes=kv_cache_bytes,
        available_bytes=available_memory_bytes() // domains,
    )
    model_constants = profile.latency_model
    groups = make_groups(
        asked,
        source,
        dtype,
        random_weights=random_weights,
        kv_cache_bytes=kv_cache_bytes,
        host_kv_memory=None,
        block_size=limits.block_size,
    )
    kinds = predicted_kinds(groups)
    names = kind_of_each_domain(groups) or [""] * domains
    return SimulationTarget(
        model=source.name,
        device=profile.device.name,
        dtype=profile.dtype,
        weight_dtype=profile.weight_dtype or "",
        latency_model=model_constants,
        domains=[DomainSpec(str(number), kv_blocks, kind=name) for number, name in enumerate(names)],
        limits=limits,
        sigma=model_constants.log_sigma if profile.noise is None else profile.noise.sigma,
        drift=None if profile.noise is None else profile.noise.drift,
        block_copy_s=0.0,
        restart_s=LOCAL_RESTART_S,
        overhead_s=STEP_GAP_S,
        lead_s=USUAL_LEAD_S,
        client_s=LOCAL_CLIENT_S,
        max_position=profile.architecture.max_position,
        origin={
            "latency_model": "measured",
            "profile": {"path": str(path), "created": profile.created},
            "kinds": [msgspec.to_builtins(group) for group in groups],
        },
        kinds=tuple(kinds),
        copies_s={kind.kind_id: 0.0 for kind in kinds},
    )


def find_architecture(model: str) -> tuple[str, ModelArchitecture]:
    """A model's name and shapes: a known public model, a config.json or its folder, or what `--model` else accepts."""
    known = known_architectures()
    if model.lower() in known:
        return model.lower(), known[model.lower()]
    path = Path(model).expanduser()
    if path.exists():
        return (path.resolve().parent if path.is_file() else path.resolve()).name, load_architecture(path)
    if path.suffix == ".json":
        raise ModelError(f"{model}: there is no such file; expected a config.json, or one of: {', '.join(known)}")
    from superinfer.executor.models.catalog import resolve_model

    try:
        source = resolve_model(model)
    except ModelError as error:
        raise ModelError(f"{error}; by shape alone: {', '.join(known)}") from None
    return source.name, load_architecture(source.directory)


def with_room_for(target: SimulationTarget, scenario: str, longest: int) -> SimulationTarget:
    """The target with a context that holds the longest request; UsageError where the model cannot."""
    if target.max_position is not None and longest > target.max_position:
        raise UsageError(
            f"scenario {scenario}: a request of {longest} tokens does not fit the model's context of "
            f"{target.max_position}; shorten prompt_tokens or output_tokens"
        )
    wanted = max(target.limits.max_model_len, longest)
    return replace(target, limits=msgspec.structs.replace(target.limits, max_model_len=wanted))
