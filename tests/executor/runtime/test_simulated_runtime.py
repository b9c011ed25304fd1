"""The simulated runtime behaves as the interface says, for the devices of a topology file."""

from __future__ import annotations

import pytest

from superinfer.contracts.errors import UsageError
from superinfer.executor.runtime.base import DeviceRuntime
from superinfer.executor.runtime.cpu import CpuRuntime
from superinfer.executor.runtime.description import HealthEvent
from superinfer.executor.runtime.device_sampler import DeviceSampler
from superinfer.executor.runtime.errors import BandwidthRefusedError
from superinfer.executor.runtime.metrics import DeviceMetrics
from superinfer.executor.runtime.simulated import SimulatedRuntime
from superinfer.scheduler.topology import parse_topology

FILE = """
nodes:
  - name: node
    host_link_gb_per_s: 55
    device_link_gb_per_s: 450
    devices: [{name: gpu, count: 3, type: H100-SXM5}]
"""


def make_runtime() -> SimulatedRuntime:
    return SimulatedRuntime(parse_topology(FILE, "test"))


def test_both_modules_are_device_runtimes() -> None:
    runtimes: list[DeviceRuntime] = [make_runtime(), CpuRuntime()]
    for runtime in runtimes:
        assert runtime.topology().devices
        assert runtime.mechanisms()
        assert runtime.health_events() == []
        runtime.close()


def test_devices_and_links_come_from_the_file() -> None:
    topology = make_runtime().topology()
    assert [device.device_id for device in topology.devices] == ["node/gpu-0", "node/gpu-1", "node/gpu-2"]
    assert len([link for link in topology.links if link.kind == "device"]) == 3
    assert {link.gb_per_s for link in topology.links if link.kind == "host"} == {55}


def test_the_bandwidth_curve_rises_to_the_rate_of_the_file() -> None:
    rates = [point.gb_per_s for point in make_runtime().bandwidth_curve("node/gpu-1")]
    assert rates == sorted(rates)
    assert rates[-1] == pytest.approx(3350)
    assert rates[0] < 3350 / 2


def test_reservations_events_and_metrics_are_kept_by_device() -> None:
    runtime = make_runtime()
    held = runtime.reserve("node/gpu-0", 3000, 500, owner="triage")
    with pytest.raises(BandwidthRefusedError, match="triage 3000"):
        runtime.reserve("node/gpu-0", 100, 500, owner="reports")
    assert runtime.reserve("node/gpu-1", 100, 500, owner="reports")
    assert runtime.release(held)
    event = HealthEvent(device_id="node/gpu-2", kind="xid", severity="fatal", detail="fell off the bus", time_s=1.0)
    runtime.emit(event)
    assert runtime.health_events() == [event]
    assert runtime.health_events() == []
    runtime.set_metrics("node/gpu-0", DeviceMetrics(power_watts=650.0))
    assert runtime.metrics("node/gpu-0").power_watts == 650.0
    assert runtime.metrics("node/gpu-1") == DeviceMetrics()
    with pytest.raises(UsageError, match="'node/gpu-7' is not simulated"):
        runtime.metrics("node/gpu-7")


def test_affinity_is_remembered_by_phase_and_checked() -> None:
    runtime = make_runtime()
    runtime.set_compute_affinity(7, 0x00FF, "prefill")
    runtime.set_compute_affinity(7, 0xFF00, "decode")
    assert runtime.affinity == {(7, "prefill"): 0x00FF, (7, "decode"): 0xFF00}
    with pytest.raises(UsageError, match="mask 0x10000"):
        runtime.set_compute_affinity(7, 0x10000)


def test_a_sampler_measures_once_a_second_and_leaves_out_what_a_device_has_not() -> None:
    now = [0.0]
    runtime = make_runtime()
    runtime.set_metrics("node/gpu-0", DeviceMetrics(memory_used_bytes=5))
    sampler = DeviceSampler(runtime, clock=lambda: now[0])
    expected = {"node/gpu-0": {"memory_used_bytes": 5}, "node/gpu-1": {}, "node/gpu-2": {}}
    assert sampler.figures() == expected
    runtime.set_metrics("node/gpu-0", DeviceMetrics(memory_used_bytes=6))
    now[0] = 0.9
    assert sampler.figures() == expected
    now[0] = 1.1
    assert sampler.figures()["node/gpu-0"] == {"memory_used_bytes": 6}
