"""Limits of workers' bandwidth: asked for when they change, and no more where the device has none."""

from __future__ import annotations

import pytest

from superinfer.executor.bandwidth_limits import BandwidthLimits
from superinfer.executor.runtime.errors import UnsupportedError
from superinfer.executor.runtime.simulated import SimulatedRuntime
from superinfer.scheduler.topology import parse_topology


class Recorder(SimulatedRuntime):
    """Keeps each call; without `can` it has no such mechanism."""

    def __init__(self, *, can: bool = True) -> None:
        super().__init__(parse_topology("nodes: [{name: n, devices: [{name: d, type: H100-SXM5}]}]", "test"))
        self.can = can
        self.calls: list[tuple[int, float | None]] = []

    def limit_bandwidth(self, pid: int, gb_per_s: float | None) -> None:
        self.calls.append((pid, gb_per_s))
        if not self.can:
            raise UnsupportedError("bandwidth limit: this device has none")


def test_a_worker_is_limited_anew_only_when_its_rate_differs_by_a_step() -> None:
    runtime = Recorder()
    limits = BandwidthLimits(runtime)
    for rate in (None, 10.0, 10.5, 9.2, 12.0, None, None, 12.0):
        limits.hold(7, rate)
    limits.hold(8, 12.0)
    assert runtime.calls == [(7, 10.0), (7, 12.0), (7, None), (7, 12.0), (8, 12.0)]


def test_a_device_without_limits_is_asked_once_and_said_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    runtime = Recorder(can=False)
    limits = BandwidthLimits(runtime)
    for pid in (7, 8):
        limits.hold(pid, 10.0)
        limits.hold(pid, None)
    assert runtime.calls == [(7, 10.0)]
    expected = (
        "superinfer engine: only the step planner keeps reserved bandwidth: bandwidth limit: this device has none\n"
    )
    assert capsys.readouterr().err == expected
