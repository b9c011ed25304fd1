"""Where a plan's costs come from: a profile measured on this machine, or a model's shapes and devices' data sheets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from superinfer.contracts.errors import UsageError
from superinfer.scheduler.pareto_demand import ModelCosts
from superinfer.scheduler.topology import Device, Topology

if TYPE_CHECKING:
    from superinfer.cli.bench.target import SimulationTarget


@dataclass(frozen=True)
class PlanCosts:
    """Costs of a model on the devices to plan for; `target` is what a simulation runs on, where costs are predicted."""

    model: str
    dtype: str
    origin: str
    costs: ModelCosts
    devices: dict[str, Device]
    target: SimulationTarget | None = None


def measured_costs(topology: Topology, model: str | None, file: Path | None, default_model: str) -> PlanCosts:
    """From a feature file, or from the cached profile of a model; every device is one to plan for."""
    from superinfer.profiler.store import load_profile

    if file is not None:
        if model is not None:
            raise UsageError(f"--model {model} and --profile {file}: give one of them, both say where costs come from")
        profile = load_profile(file)
    else:
        from superinfer.cli.contracts_feasibility import cached_profile

        profile = cached_profile(model or default_model, "auto")
    memory = profile.static.memory
    return PlanCosts(
        model=profile.model,
        dtype=profile.dtype,
        origin=profile.device.name,
        costs=ModelCosts(profile.latency_model, memory.weight_bytes, memory.kv_bytes_per_token),
        devices=topology.devices,
    )


def predicted_costs(topology: Topology, path: Path, model: str) -> PlanCosts:
    """From the model's shapes and the data sheet of the devices; each group that holds a copy is planned as one."""
    from superinfer.cli.bench.target import cluster_target, find_architecture
    from superinfer.profiler.static import BYTES_PER_ELEMENT, kv_bytes_per_token
    from superinfer.scheduler.serving_groups import one_kind

    groups = one_kind(topology)
    target = cluster_target(model, path, "auto")
    _, architecture = find_architecture(model)
    degree = groups[0].serving.tensor_parallel
    devices = {
        group.domain_id: msgspec.structs.replace(
            group.device,
            memory_gb=group.device.memory_gb * degree,
            bandwidth_gb_per_s=group.device.bandwidth_gb_per_s * degree,
            relative_compute=1.0,
        )
        for group in groups
    }
    return PlanCosts(
        model=target.model,
        dtype=target.dtype,
        origin=f"the data sheet of {topology.nodes[0].devices[0].type}",
        costs=ModelCosts(
            target.latency_model,
            architecture.parameters * BYTES_PER_ELEMENT[target.dtype],
            kv_bytes_per_token(architecture, target.dtype),
        ),
        devices=devices,
        target=target,
    )
