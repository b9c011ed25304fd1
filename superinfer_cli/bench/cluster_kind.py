"""What one kind of a topology's domains can do, predicted from the data sheet of its devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from superinfer.contracts.errors import UsageError
from superinfer.profiler.architecture import ModelArchitecture
from superinfer.profiler.data_sheet import DataSheet, data_sheet
from superinfer.profiler.roofline import Efficiency, kv_token_capacity, roofline_model
from superinfer.profiler.static import BYTES_PER_ELEMENT, kv_bytes_per_token
from superinfer.profiler.store import latency_constants
from superinfer.scheduler.config import SchedulerConfig
from superinfer.scheduler.domain_kind import DomainKind
from superinfer.scheduler.serving_groups import ServingGroup
from superinfer.scheduler.topology import Topology


@dataclass(frozen=True, slots=True)
class ClusterKind:
    """A kind, the KV blocks of each of its domains, and what a rotated block adds to a step."""

    kind: DomainKind
    kv_blocks: int
    block_copy_s: float
    sheet: DataSheet

    def origin(self) -> dict[str, Any]:
        """Where its latency model comes from, for config.yaml."""
        return {
            "precision": self.kind.precision,
            "max_running": self.kind.max_running,
            "max_step_tokens": self.kind.max_step_tokens,
            "data_sheet": msgspec.to_builtins(self.sheet),
            "constants": msgspec.to_builtins(latency_constants(self.kind.latency_model)),
        }


def cluster_kind(
    topology: Topology, group: ServingGroup, architecture: ModelArchitecture, dtype: str, efficiency: Efficiency
) -> ClusterKind:
    """The kind of one group; `dtype` where its serving names no precision.

    A precision of fewer bytes than `dtype` loses some of it: only contracts that permit that are served there. Raises
    UsageError where the model does not fit.
    """
    serving, sheet = group.serving, _sheet(topology, group)
    precision = serving.precision or dtype
    degree = serving.tensor_parallel
    block_bytes = SchedulerConfig().block_size * kv_bytes_per_token(architecture, precision)
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
    kind = DomainKind(
        group.kind_id,
        latency,
        max_running=serving.max_running,
        max_step_tokens=serving.max_step_tokens,
        host_blocks=int(serving.host_kv_gb * 1e9 / block_bytes),
        device_type=group.device.type,
        devices=degree,
        memory_per_device_mb=group.device.memory_gb * 1e3,
        precision=precision,
        loses_precision=BYTES_PER_ELEMENT[precision] < BYTES_PER_ELEMENT[dtype],
        kv_layout=precision,
    )
    copy_s = block_bytes / (min(degree, architecture.kv_heads) * host_link * 1e9)
    return ClusterKind(kind, kv_tokens // SchedulerConfig().block_size, copy_s, sheet)


def _sheet(topology: Topology, group: ServingGroup) -> DataSheet:
    """The data sheet of a group's devices with what the topology says instead."""
    device = group.device
    try:
        sheet = data_sheet(device.type)
    except UsageError as error:
        raise UsageError(f"topology {topology.name}: {error}") from None
    return msgspec.structs.replace(sheet, memory_gb=device.memory_gb, bandwidth_gb_per_s=device.bandwidth_gb_per_s)
