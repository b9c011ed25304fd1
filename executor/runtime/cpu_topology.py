"""A CPU machine as Linux tells it: NUMA nodes as devices, cores as slices, caches and sockets around them.

A slice is one CPU of the system by its number. Hyper-threads are slices of their own; a partition names those that
share a core.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from superinfer.executor.runtime.description import Cache, Device, DeviceTopology, Link, Partition, mask_of, slices_of
from superinfer.profiler.device import device_name

SYSTEM = Path("/sys/devices/system")


def parse_cpu_list(text: str) -> list[int]:
    """Linux's list format: "0-3,8" → [0, 1, 2, 3, 8]."""
    numbers: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            numbers += range(int(first), int(last or first) + 1)
    return numbers


def cpu_topology(system: Path = SYSTEM, usable: Iterable[int] | None = None) -> DeviceTopology:
    """One device for each NUMA node that has cores, `cpu-<node>`; `usable` are the CPUs this process may use.

    Where the system tells of no NUMA nodes (no /sys in a sandbox) all usable CPUs are one device of unknown memory.
    """
    usable_mask = mask_of(os.sched_getaffinity(0) if usable is None else usable)
    nodes = {node: cpus for node, cpus in _nodes(system).items() if cpus} or {0: slices_of(usable_mask)}
    name = device_name()
    devices = []
    for node, cpus in nodes.items():
        mask = mask_of(cpus)
        caches = _caches(system, cpus)
        devices.append(
            Device(
                device_id=f"cpu-{node}",
                name=name,
                memory_bytes=_memory_bytes(system / f"node/node{node}/meminfo"),
                mask=mask,
                usable_mask=mask & usable_mask,
                partitions=_partitions(system, cpus, caches),
                caches=caches,
            )
        )
    return DeviceTopology(devices=devices, links=_links(system, list(nodes)))


def _nodes(system: Path) -> dict[int, list[int]]:
    nodes = {}
    for folder in (system / "node").glob("node[0-9]*"):
        nodes[int(folder.name.removeprefix("node"))] = parse_cpu_list(_read(folder / "cpulist"))
    return dict(sorted(nodes.items()))


def _memory_bytes(meminfo: Path) -> int:
    for line in _read(meminfo).splitlines():
        if "MemTotal:" in line:
            return int(line.split()[-2]) * 1024
    return 0


def _caches(system: Path, cpus: list[int]) -> list[Cache]:
    found: dict[tuple[int, str, int], Cache] = {}
    for cpu in cpus:
        for index in sorted((system / f"cpu/cpu{cpu}/cache").glob("index[0-9]*")):
            level, kind = _read(index / "level").strip(), _read(index / "type").strip().lower()
            size, shared = _read(index / "size").strip(), parse_cpu_list(_read(index / "shared_cpu_list"))
            if level and size and shared:
                cache = Cache(level=int(level), kind=kind, size_bytes=_size_bytes(size), mask=mask_of(shared))
                found[cache.level, cache.kind, cache.mask] = cache
    return [found[key] for key in sorted(found)]


def _size_bytes(text: str) -> int:
    unit = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1])
    return int(text) if unit is None else int(text[:-1]) * unit


def _partitions(system: Path, cpus: list[int], caches: list[Cache]) -> list[Partition]:
    """Cores that share a socket, a last-level cache, a core: each group once, whole devices left out."""
    partitions: dict[int, Partition] = {}
    last_level = max((cache.level for cache in caches), default=0)

    def add(name: str, members: list[int], shares: str) -> None:
        mask = mask_of(cpu for cpu in members if cpu in cpus)
        if mask and mask not in partitions:
            partitions[mask] = Partition(name=name, mask=mask, shares=shares)

    for cpu in cpus:
        topology = system / f"cpu/cpu{cpu}/topology"
        socket = _read(topology / "physical_package_id").strip()
        add(f"socket-{socket or 0}", parse_cpu_list(_read(topology / "package_cpus_list")), f"socket {socket or 0}")
    for number, cache in enumerate(cache for cache in caches if cache.level == last_level):
        add(f"l{last_level}-{number}", slices_of(cache.mask), f"level {last_level} cache")
    for cpu in cpus:
        siblings = parse_cpu_list(_read(system / f"cpu/cpu{cpu}/topology/thread_siblings_list")) or [cpu]
        add(f"core-{siblings[0]}", siblings, "core")
    return list(partitions.values())


def _links(system: Path, nodes: list[int]) -> list[Link]:
    links = []
    for first in nodes:
        distances = [int(text) for text in _read(system / f"node/node{first}/distance").split()]
        for position, second in enumerate(nodes):
            if first < second and position < len(distances):
                ends = (f"cpu-{first}", f"cpu-{second}")
                links.append(Link(between=ends, kind="numa", relative_distance=distances[position]))
    return links


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""
