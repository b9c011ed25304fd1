"""The topology that a made-up /sys describes, and this machine's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from superinfer.executor.runtime.cpu_topology import cpu_topology, parse_cpu_list
from superinfer.executor.runtime.description import mask_of, slices_of


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def two_sockets(system: Path) -> Path:
    """Two NUMA nodes of four CPUs, two hyper-threads a core, one L3 each, a private L1."""
    for node, cpus in enumerate((range(4), range(4, 8))):
        listed = f"{cpus[0]}-{cpus[-1]}"
        write(system / f"node/node{node}/cpulist", listed + "\n")
        write(system / f"node/node{node}/meminfo", f"Node {node} MemTotal:  1048576 kB\nNode {node} MemUsed: 1024 kB\n")
        write(system / f"node/node{node}/distance", "10 21\n" if node == 0 else "21 10\n")
        for cpu in cpus:
            base, pair = system / f"cpu/cpu{cpu}", cpu // 2 * 2
            write(base / "topology/physical_package_id", str(node))
            write(base / "topology/package_cpus_list", listed)
            write(base / "topology/thread_siblings_list", f"{pair}-{pair + 1}")
            for index, (level, size, shared) in enumerate(((1, "32K", f"{pair}-{pair + 1}"), (3, "16M", listed))):
                write(base / f"cache/index{index}/level", str(level))
                write(base / f"cache/index{index}/type", "Data" if level == 1 else "Unified")
                write(base / f"cache/index{index}/size", size)
                write(base / f"cache/index{index}/shared_cpu_list", shared)
    return system


def test_nodes_are_devices_with_their_sockets_cores_and_caches(tmp_path: Path) -> None:
    topology = cpu_topology(two_sockets(tmp_path), usable=[0, 1, 4])
    first, second = topology.devices
    assert (first.device_id, second.device_id) == ("cpu-0", "cpu-1")
    assert (first.mask, second.mask) == (0x0F, 0xF0)
    assert (first.usable_mask, second.usable_mask) == (0x03, 0x10)
    assert first.memory_bytes == 2**30
    assert {p.name: p.mask for p in second.partitions} == {"socket-1": 0xF0, "core-4": 0x30, "core-6": 0xC0}
    assert [(c.level, c.kind, c.size_bytes, c.mask) for c in first.caches] == [
        (1, "data", 32 * 1024, 0x03),
        (1, "data", 32 * 1024, 0x0C),
        (3, "unified", 16 * 2**20, 0x0F),
    ]
    (link,) = topology.links
    assert (link.between, link.relative_distance, link.gb_per_s) == (("cpu-0", "cpu-1"), 21, None)


def test_without_sysfs_the_usable_cores_are_one_device(tmp_path: Path) -> None:
    (device,) = cpu_topology(tmp_path / "nothing", usable=[2, 5]).devices
    assert device.mask == device.usable_mask == mask_of([2, 5])
    assert device.memory_bytes == 0


def test_the_topology_of_this_machine_has_every_core_that_this_process_may_use() -> None:
    usable = {core for device in cpu_topology().devices for core in slices_of(device.usable_mask)}
    assert usable == os.sched_getaffinity(0)


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-3,8", [0, 1, 2, 3, 8]), ("5", [5]), ("\n", []), ("0,2-3\n", [0, 2, 3])]
)
def test_cpu_lists_are_read_as_linux_writes_them(text: str, numbers: list[int]) -> None:
    assert parse_cpu_list(text) == numbers
