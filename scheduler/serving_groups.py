"""Which devices of a topology serve together: one fault domain for each tensor-parallel group."""

from __future__ import annotations

from dataclasses import dataclass

from superinfer.contracts.errors import UsageError
from superinfer.scheduler.topology import Device, Node, Topology


@dataclass(frozen=True, slots=True)
class ServingGroup:
    """Devices of one node that hold one copy of the model; `device` is one of them, for all are of one kind.

    Link rates are per device and direction, in 10⁹ bytes/s; None where the topology says there is no such link.
    """

    domain_id: str
    device_ids: tuple[str, ...]
    device: Device
    device_link_gb_per_s: float | None
    host_link_gb_per_s: float | None


def serving_groups(topology: Topology) -> list[ServingGroup]:
    """The groups in the order of the file: successive devices of a node, `serving.tensor_parallel` at a time.

    UsageError where a node's devices do not divide into groups, or where groups differ: the scheduler has one latency
    model for all domains.
    """
    size = topology.serving.tensor_parallel
    groups: list[ServingGroup] = []
    for node in topology.nodes:
        if len(node.devices) % size:
            raise UsageError(
                f"topology {topology.name}: serving.tensor_parallel {size}: must divide the {len(node.devices)} "
                f"device(s) of node {node.name}"
            )
        groups += [_group(node, node.devices[first : first + size]) for first in range(0, len(node.devices), size)]
    kinds = {_kind(group) for group in groups}
    if len(kinds) > 1:
        raise UsageError(
            f"topology {topology.name}: nodes: domains of {len(kinds)} kinds; one type of device with one rate of each "
            "link is accepted"
        )
    return groups


def _group(node: Node, devices: list[Device]) -> ServingGroup:
    ids = tuple(f"{node.name}/{device.name}" for device in devices)
    is_whole_node = len(devices) == len(node.devices) > 1
    span = ids[0] if len(ids) == 1 else f"{ids[0]}..{devices[-1].name}"
    return ServingGroup(
        domain_id=node.name if is_whole_node else span,
        device_ids=ids,
        device=devices[0],
        device_link_gb_per_s=node.device_link_gb_per_s,
        host_link_gb_per_s=node.host_link_gb_per_s,
    )


def _kind(group: ServingGroup) -> tuple[object, ...]:
    device = group.device
    return (
        device.type,
        device.memory_gb,
        device.bandwidth_gb_per_s,
        device.relative_compute,
        group.device_link_gb_per_s,
        group.host_link_gb_per_s,
    )
