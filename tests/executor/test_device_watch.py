"""What the engine makes of its devices: bandwidth by worker, and health events that reach the workers they concern."""

from __future__ import annotations

from pathlib import Path

import pytest

from superinfer.executor.device_watch import LOOK_S, DeviceWatch, stored_weight_bytes
from superinfer.executor.runtime.curve_file import curve_path, ensure_curves, load_curve
from superinfer.executor.runtime.description import BandwidthPoint, HealthEvent
from superinfer.executor.runtime.simulated import SimulatedRuntime
from superinfer.scheduler.topology import parse_topology

FILE = "nodes: [{name: n, devices: [{name: d, type: H100-SXM5}]}]"


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedRuntime:
    monkeypatch.setenv("SUPERINFER_CACHE", str(tmp_path))
    return SimulatedRuntime(parse_topology(FILE, "test"))


def event(severity: str, mask: int) -> HealthEvent:
    return HealthEvent(device_id="n/d", kind="x", severity=severity, detail="it broke", time_s=0.0, mask=mask)  # type: ignore[arg-type]


def test_events_come_at_the_next_look_and_hit_the_workers_on_their_cores(runtime: SimulatedRuntime) -> None:
    watch = DeviceWatch(runtime)
    assert watch.look(10.0) == []
    runtime.emit(event("fatal", 0b10))
    assert watch.look(10.0 + LOOK_S / 2) == []
    (seen,) = watch.look(10.0 + LOOK_S)
    assert watch.is_hit(seen, [1])
    assert not watch.is_hit(seen, [0])
    assert watch.is_hit(event("fatal", 0), [0])


def test_bandwidth_is_known_once_it_was_measured_and_survives_a_damaged_file(runtime: SimulatedRuntime) -> None:
    watch = DeviceWatch(runtime)
    assert watch.bandwidth_of([3]) == ("n/d", None)
    curves = ensure_curves(runtime)
    assert watch.bandwidth_of([3]) == ("n/d", pytest.approx(3350))
    (device,) = runtime.topology().devices
    assert load_curve("simulated", device) == curves["n/d"]
    curve_path("simulated", device).write_text("{")
    assert watch.bandwidth_of([3]) == ("n/d", None)


def test_a_step_reads_the_weights_as_they_are_stored(tmp_path: Path) -> None:
    assert stored_weight_bytes(tmp_path, 1000) == 2000
    (tmp_path / "model.safetensors").write_bytes(b"x" * 3000)
    assert stored_weight_bytes(tmp_path, 1000) == 3000
    assert stored_weight_bytes(tmp_path, 1000, "int8") == 1125


def test_a_curve_measured_on_a_busy_machine_is_not_kept(
    runtime: SimulatedRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = [BandwidthPoint(mask=1, gb_per_s=4.0, core_share=0.4)]
    monkeypatch.setattr(runtime, "bandwidth_curve", lambda _: busy)
    assert ensure_curves(runtime) == {"n/d": busy}
    assert DeviceWatch(runtime).bandwidth_of([3]) == ("n/d", None)
