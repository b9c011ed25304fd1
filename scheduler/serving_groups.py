"""Which devices of a topology serve together: one fault domain for each tensor-parallel group."""

from __future__ import annotations

from dataclasses import dataclass

from superinfer.contracts.errors import UsageError
from superinfer.scheduler.topology import Device, Node, Serving, Topology


@dataclass(frozen=True, slots=True)
class ServingGroup:
    """Devices of one node that hold one copy of the model; `device` is one of them, for all are of one type.

    Link rates are per device and direction, in 10⁹ bytes/s; None where the topology says there is no such link. Groups
    with the same `kind_id` are alike in all but their names.
    """

    domain_id: str
    device_ids: tuple[str, ...]
    device: Device
    device_link_gb_per_s: float | None
    host_link_gb_per_s: float | None
    serving: Serving
    kind_id: str = ""


def serving_groups(topology: Topology) -> list[ServingGroup]:
    """The groups in the order of the file: successive devices of a node, as many at a time as serve together there.

    UsageError where a node's devices do not divide into groups, or where those of one group differ.
    """
    groups: list[ServingGroup] = []
    kinds: dict[tuple[object, ...], str] = {}
    for node in topology.nodes:
        serving = topology.serving.of(node)
        size = serving.tensor_parallel
        if len(node.devices) % size:
            raise UsageError(
                f"topology {topology.name}: serving.tensor_parallel {size}: must divide the {len(node.devices)} "
                f"device(s) of node {node.name}"
            )
        for first in range(0, len(node.devices), size):
            groups.append(_group(topology, node, node.devices[first : first + size], serving, kinds))
    return groups


def one_kind(topology: Topology) -> list[ServingGroup]:
    """`serving_groups` for what has one latency model for all; UsageError where kinds differ."""
    groups = serving_groups(topology)
    kinds = {group.kind_id for group in groups}
    if len(kinds) > 1:
        raise UsageError(
            f"topology {topology.name}: nodes: domains of {len(kinds)} kinds ({', '.join(sorted(kinds))}); one kind of "
            "device, links and serving is accepted here"
        )
    return groups


def _group(
    topology: Topology, node: Node, devices: list[Device], serving: Serving, kinds: dict[tuple[object, ...], str]
) -> ServingGroup:
    if len({_sort_of(device) for device in devices}) > 1:
        raise UsageError(
            f"topology {topology.name}: nodes: {node.name}: devices that serve together differ; one type of device is "
            "accepted in a group"
        )
    ids = tuple(f"{node.name}/{device.name}" for device in devices)
    is_whole_node = len(devices) == len(node.devices) > 1
    span = ids[0] if len(ids) == 1 else f"{ids[0]}..{devices[-1].name}"
    kind = (*_sort_of(devices[0]), node.device_link_gb_per_s, node.host_link_gb_per_s, serving)
    return ServingGroup(
        domain_id=node.name if is_whole_node else span,
        device_ids=ids,
        device=devices[0],
        device_link_gb_per_s=node.device_link_gb_per_s,
        host_link_gb_per_s=node.host_link_gb_per_s,
        serving=serving,
        kind_id=kinds.setdefault(kind, _kind_name(devices[0], serving, len(kinds))),
    )


def _sort_of(device: Device) -> tuple[object, ...]:
    return device.type, device.memory_gb, device.bandwidth_gb_per_s, device.relative_compute


def _kind_name(device: Device, serving: Serving, number: int) -> str:
    """What people call a kind; its number tells those apart whose devices have the same type."""
    precision = "" if serving.precision is None else f" {serving.precision}"
    return f"{number}: {serving.tensor_parallel} × {device.type or device.name}{precision}"
