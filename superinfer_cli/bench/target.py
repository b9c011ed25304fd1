"""What a simulated bench runs on: this machine's workers as its profile knows them, or the cluster of a topology."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from superinfer.contracts.errors import ModelError, UsageError
from superinfer.profiler.architecture import ModelArchitecture, load_architecture
from superinfer.profiler.data_sheet import DataSheet, data_sheet
from superinfer.profiler.drift import Drift
from superinfer.profiler.known_architectures import known_architectures
from superinfer.profiler.latency_model import LatencyModel
from superinfer.profiler.roofline import Efficiency, kv_token_capacity, roofline_model
from superinfer.profiler.static import BYTES_PER_ELEMENT, kv_bytes_per_token
from superinfer.profiler.store import latency_constants
from superinfer.scheduler.config import DomainSpec, SchedulerConfig
from superinfer.scheduler.serving_groups import ServingGroup, serving_groups
from superinfer.scheduler.topology import Topology, load_topology

LOCAL_RESTART_S = 5.0
"""From the death of a worker of this machine to its successor's being ready: process start, weights, kernels."""


@dataclass(frozen=True, slots=True)
class SimulationTarget:
    """Devices to simulate. `limits` holds the scheduler's limits, `sigma` the log-normal noise of each step's
    time and `drift` that of the device's speed.

    `block_copy_s` is what a rotated KV block adds to a step, `restart_s` a dead domain's time until it serves again.
    `overhead_s` lies between two steps; a step is planned `lead_s` before the end of the one before, or when that has
    ended. `origin` says where the latency model comes from, for config.yaml.
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
    overhead_s: float = 0.0
    lead_s: float | None = None


def cluster_target(model: str, topology_path: Path, dtype: str) -> SimulationTarget:
    """Every tensor-parallel group of a topology as a domain, its latency predicted from the data sheet of its devices.

    Rotated KV moves over each device's own host link, all devices of a group at once, before the step's compute and not
    beside it. Raises UsageError and ModelError.
    """
    topology = load_topology(topology_path)
    name, architecture = find_architecture(model)
    groups = serving_groups(topology)
    group, serving, efficiency = groups[0], topology.serving, Efficiency()
    sheet = _sheet(topology, group)
    precision = "bfloat16" if dtype == "auto" else dtype
    degree = serving.tensor_parallel
    limits = SchedulerConfig(max_step_tokens=serving.max_step_tokens, max_running=serving.max_running)
    block_bytes = limits.block_size * kv_bytes_per_token(architecture, precision)
    host_link = group.host_link_gb_per_s or sheet.host_link_gb_per_s
    kv_tokens = kv_token_capacity(architecture, sheet, dtype=precision, tensor_parallel=degree, efficiency=efficiency)
    latency = roofline_model(
        architecture,
        sheet,
        dtype=precision,
        tensor_parallel=degree,
        link_gb_per_s=group.device_link_gb_per_s or host_link,
        efficiency=efficiency,
    )
    return SimulationTarget(
        model=name,
        device=f"{len(topology.devices)} × {group.device.type} in {len(groups)} domain(s) of {degree}",
        dtype=precision,
        latency_model=latency,
        domains=[DomainSpec(each.domain_id, kv_tokens // limits.block_size) for each in groups],
        limits=msgspec.structs.replace(limits, host_blocks=int(serving.host_kv_gb * 1e9 / block_bytes)),
        sigma=efficiency.residual_sigma,
        block_copy_s=block_bytes / (min(degree, architecture.kv_heads) * host_link * 1e9),
        restart_s=serving.restart_s,
        max_position=architecture.max_position,
        origin={
            "latency_model": "roofline",
            "topology": msgspec.to_builtins(topology),
            "data_sheet": msgspec.to_builtins(sheet),
            "efficiency": msgspec.to_builtins(efficiency),
            "weights_gb": architecture.parameters * BYTES_PER_ELEMENT[precision] / 1e9,
            "constants": msgspec.to_builtins(latency_constants(latency)),
        },
    )


def local_target(
    model: str, dtype: Any, *, domains: int, random_weights: bool, kv_cache_bytes: int | None
) -> SimulationTarget:
    """This machine's workers, by the measured profile of the model (measured now where there is none)."""
    from superinfer.cli.console import err
    from superinfer.cli.profile import ensure_profile
    from superinfer.executor.kv_cache import plan_device_blocks
    from superinfer.executor.model.memory import available_memory_bytes
    from superinfer.executor.models.catalog import resolve_model
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
    return SimulationTarget(
        model=source.name,
        device=profile.device.name,
        dtype=profile.dtype,
        latency_model=model_constants,
        domains=[DomainSpec(str(number), kv_blocks) for number in range(domains)],
        limits=limits,
        sigma=model_constants.log_sigma if profile.noise is None else profile.noise.sigma,
        drift=None if profile.noise is None else profile.noise.drift,
        block_copy_s=0.0,
        restart_s=LOCAL_RESTART_S,
        max_position=profile.architecture.max_position,
        origin={"latency_model": "measured", "profile": {"path": str(path), "created": profile.created}},
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


def _sheet(topology: Topology, group: ServingGroup) -> DataSheet:
    """The data sheet of a group's devices with what the topology says instead."""
    device = group.device
    try:
        sheet = data_sheet(device.type)
    except UsageError as error:
        raise UsageError(f"topology {topology.name}: {error}") from None
    return msgspec.structs.replace(sheet, memory_gb=device.memory_gb, bandwidth_gb_per_s=device.bandwidth_gb_per_s)
