"""The topology file: which devices there are, what each can hold and move, how they are linked, what load is expected.

    name: two-nodes
    nodes:
      - name: node                      # count: 2 makes node-0 and node-1
        count: 2
        host_link_gb_per_s: 55          # each device to host memory
        device_link_gb_per_s: 450       # each device to the others of its node; leave out where there is no such link
        devices:
          - {name: gpu, count: 8, type: H100-SXM5, memory_gb: 80, bandwidth_gb_per_s: 3350, relative_compute: 1.0}
    links:
      - {between: [node-0, node-1], bandwidth_gb_per_s: 50, latency_us: 5}
    demands:                            # what each service is expected to send, for `superinfer contracts plan`
      risk-scoring: {rate_per_s: 12, prompt_tokens: 600, output_tokens: 20}
    serving: {tensor_parallel: 8}       # how devices form fault domains, for `superinfer bench --simulate`

A node may have a `serving` of its own, which goes before the topology's in what it says: nodes with other devices serve
with other groups, limits and precision.

A device's id is `<node>/<device>`. `relative_compute` is its speed against the device of the latency profile. GB are
10⁹ bytes. `memory_gb` and `bandwidth_gb_per_s` may be left out where the data sheet of `type` has them.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from superinfer.contracts.errors import UsageError
from superinfer.contracts.yaml_reader import read_settings
from superinfer.profiler.data_sheet import data_sheets

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]+$", max_length=64)]
Positive = Annotated[float, Meta(gt=0, le=1e12)]
Count = Annotated[int, Meta(ge=1, le=4096)]


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device; with `count` it stands for several of the same kind, named `<name>-0` and on."""

    name: Name
    type: str = ""
    memory_gb: Positive
    bandwidth_gb_per_s: Positive
    relative_compute: Positive = 1.0
    count: Count | None = None


ServingPrecision = Literal["float32", "bfloat16", "float16", "float8", "int8"]


class NodeServing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the devices of one node serve; what is None is as the topology says."""

    tensor_parallel: Count | None = None
    max_step_tokens: Count | None = None
    max_running: Count | None = None
    host_kv_gb: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    precision: ServingPrecision | None = None


class Node(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One machine; link rates are per device, None where there is no such link. `count` as for devices."""

    name: Name
    devices: Annotated[list[Device], Meta(min_length=1)]
    host_link_gb_per_s: Positive | None = None
    device_link_gb_per_s: Positive | None = None
    count: Count | None = None
    serving: NodeServing | None = None


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A link between two nodes, usable in both directions at this rate."""

    between: tuple[str, str]
    bandwidth_gb_per_s: Positive
    latency_us: Annotated[float, Meta(ge=0, le=1e9)] = 0.0


class OfferedLoad(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a service is expected to send: a mean rate, and tokens of a typical request."""

    rate_per_s: Positive
    prompt_tokens: Annotated[int, Meta(ge=1, le=10_000_000)]
    output_tokens: Annotated[int, Meta(ge=1, le=10_000_000)]


class Serving(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the devices serve: each `tensor_parallel` of a node hold one copy of the model and are one fault domain.

    `max_step_tokens` and `max_running` are the scheduler's limits per domain, `host_kv_gb` the host memory of a domain
    for rotated KV, `restart_s` the time from the death of a domain until it serves again: process start, weights,
    captured graphs. `precision` is that of weights and KV; None leaves it to whoever simulates.
    """

    tensor_parallel: Count = 1
    max_step_tokens: Count = 2048
    max_running: Count = 256
    host_kv_gb: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    restart_s: Annotated[float, Meta(ge=0, le=1e6)] = 60.0
    precision: ServingPrecision | None = None

    def of(self, node: Node) -> Serving:
        """How the devices of a node serve."""
        own = {} if node.serving is None else msgspec.structs.asdict(node.serving)
        return msgspec.structs.replace(self, **{key: value for key, value in own.items() if value is not None})


class Topology(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A topology with every `count` written out: names of nodes and of a node's devices are unique."""

    name: str = ""
    nodes: Annotated[list[Node], Meta(min_length=1)]
    links: list[Link] = []
    demands: dict[str, OfferedLoad] = {}
    serving: Serving = Serving()

    @property
    def devices(self) -> dict[str, Device]:
        """All devices by id, `<node>/<device>`."""
        return {f"{node.name}/{device.name}": device for node in self.nodes for device in node.devices}

    def link_gb_per_s(self, first_id: str, second_id: str) -> float | None:
        """The rate between two devices: their node's own link, or that of the nodes; None where there is none."""
        first, second = self._node_of(first_id), self._node_of(second_id)
        if first is second:
            return first.device_link_gb_per_s
        rates = [link.bandwidth_gb_per_s for link in self.links if {*link.between} == {first.name, second.name}]
        return max(rates, default=None)

    def _node_of(self, device_id: str) -> Node:
        name = device_id.partition("/")[0]
        for node in self.nodes:
            if node.name == name and any(f"{name}/{device.name}" == device_id for device in node.devices):
                return node
        raise UsageError(f"device {device_id!r} is not in topology {self.name!r}; known: {', '.join(self.devices)}")


def load_topology(path: Path) -> Topology:
    """Read a topology file (YAML or JSON), or a shipped example by its name.

    UsageError names the file, the place in it and what is accepted.
    """
    if not path.exists() and path.name == str(path) and (text := _example(path.name)) is not None:
        return parse_topology(text, path.name)
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        shipped = f"; shipped: {', '.join(example_names())}" if path.name == str(path) else ""
        raise UsageError(f"topology {path}: cannot be read ({error}){shipped}") from None
    return parse_topology(text, str(path))


def parse_topology(text: str, source: str) -> Topology:
    """The topology in `text`; `source` is how errors call it."""
    data = read_settings(text, f"topology {source}")
    if not isinstance(data, dict):
        raise UsageError(f"topology {source}: a mapping with nodes is needed")
    try:
        topology = msgspec.convert(_with_data_sheets(data), Topology)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at ")
        path = place.strip("`").removeprefix("$").lstrip(".")
        raise UsageError(f"topology {source}: {f'{path}: ' if path else ''}{problem}") from None
    topology = msgspec.structs.replace(topology, nodes=_written_out(topology.nodes))
    if contradiction := _contradiction(topology):
        raise UsageError(f"topology {source}: {contradiction}")
    return topology


def example_names() -> list[str]:
    """Names of the topologies that are shipped."""
    folder = resources.files("superinfer.scheduler").joinpath("examples")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def _example(name: str) -> str | None:
    """The text of a shipped topology, None where there is none of this name."""
    stem = name.removesuffix(".yaml")
    if stem not in example_names():
        return None
    return resources.files("superinfer.scheduler").joinpath(f"examples/{stem}.yaml").read_text("utf-8")


def _with_data_sheets(data: dict[str, Any]) -> dict[str, Any]:
    """The parsed file with memory and bandwidth of devices whose type has a data sheet; what is amiss stays so."""

    def filled(device: Any) -> Any:
        sheet = data_sheets().get(str(device.get("type", ""))) if isinstance(device, dict) else None
        if sheet is None:
            return device
        return {"memory_gb": sheet.memory_gb, "bandwidth_gb_per_s": sheet.bandwidth_gb_per_s, **device}

    def node_filled(node: Any) -> Any:
        if not isinstance(node, dict) or not isinstance(node.get("devices"), list):
            return node
        return {**node, "devices": [filled(device) for device in node["devices"]]}

    nodes = data.get("nodes")
    return {**data, "nodes": [node_filled(node) for node in nodes]} if isinstance(nodes, list) else data


def _names(name: str, count: int | None) -> list[str]:
    return [name] if count is None else [f"{name}-{number}" for number in range(count)]


def _written_out(nodes: list[Node]) -> list[Node]:
    """Nodes and devices without `count`."""
    replace = msgspec.structs.replace
    result = []
    for node in nodes:
        devices = [
            replace(device, name=name, count=None)
            for device in node.devices
            for name in _names(device.name, device.count)
        ]
        result += [replace(node, name=name, devices=devices, count=None) for name in _names(node.name, node.count)]
    return result


def _contradiction(topology: Topology) -> str | None:
    """What the file says that cannot be, or None."""
    nodes = [node.name for node in topology.nodes]
    if twice := _first_duplicate(nodes):
        return f"nodes: the name {twice!r} is used twice; each name once is accepted"
    for node in topology.nodes:
        if twice := _first_duplicate([device.name for device in node.devices]):
            return f"nodes: {node.name}: the device name {twice!r} is used twice; each name once is accepted"
    for number, link in enumerate(topology.links):
        place = f"links[{number}].between"
        for end in link.between:
            if end not in nodes:
                return f"{place}: {end!r} is not a node; accepted: {', '.join(nodes)}"
        if link.between[0] == link.between[1]:
            return f"{place}: {link.between[0]!r} is linked with itself; use device_link_gb_per_s inside a node"
    return None


def _first_duplicate(names: list[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
