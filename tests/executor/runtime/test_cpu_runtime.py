"""The CPU runtime: reservations that say why not, affinity of every thread, health and metrics from made-up sensors."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from superinfer.contracts.errors import UsageError
from superinfer.executor.runtime.cpu import CpuRuntime
from superinfer.executor.runtime.cpu_sensors import CpuSensors
from superinfer.executor.runtime.description import BandwidthPoint, mask_of
from superinfer.executor.runtime.errors import BandwidthRefusedError, PrivilegeError, UnsupportedError
from superinfer.executor.runtime.memory_bandwidth import measure_curve
from superinfer.executor.runtime.metrics import METRIC_NAMES
from superinfer.executor.runtime.resctrl import Resctrl
from superinfer.executor.runtime.thread_affinity import pin_threads, thread_ids
from superinfer.scheduler.ledger import Priority


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def curve(cores: list[int]) -> list[BandwidthPoint]:
    return [
        BandwidthPoint(mask=mask_of(cores[:1]), gb_per_s=120.0),
        BandwidthPoint(mask=mask_of(cores), gb_per_s=200.0),
    ]


def make_runtime(tmp_path: Path, clock: Clock | None = None) -> CpuRuntime:
    return CpuRuntime(
        sensors=CpuSensors(tmp_path), resctrl=Resctrl(tmp_path / "none"), curve=curve, clock=clock or Clock()
    )


def device_of(runtime: CpuRuntime) -> str:
    return runtime.topology().devices[0].device_id


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_refusal_says_the_limit_and_who_holds_what_until_it_is_released(tmp_path: Path) -> None:
    clock = Clock()
    runtime = make_runtime(tmp_path, clock)
    device_id = device_of(runtime)
    runtime.bandwidth_curve(device_id)
    held = runtime.reserve(device_id, bandwidth_gb_per_s=120, duration_ms=500, priority=Priority.HIGH, owner="triage")
    with pytest.raises(BandwidthRefusedError, match=r"60 of 180 GB/s are free in the window; reserved: triage 120"):
        runtime.reserve(device_id, bandwidth_gb_per_s=100, duration_ms=500, owner="reports")
    with pytest.raises(BandwidthRefusedError, match=r"at most 180 GB/s of this device may be reserved at all"):
        runtime.reserve(device_id, bandwidth_gb_per_s=190, duration_ms=500, owner="reports")
    assert runtime.release(held)
    assert not runtime.release(held)
    assert runtime.reserve(device_id, bandwidth_gb_per_s=100, duration_ms=500, owner="reports")
    clock.now += 0.6
    assert runtime.reserve(device_id, bandwidth_gb_per_s=180, duration_ms=500, owner="triage")


def test_an_unmeasured_or_unknown_device_reserves_nothing(tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path)
    with pytest.raises(UsageError, match="not in the ledger"):
        runtime.reserve(device_of(runtime), bandwidth_gb_per_s=1, duration_ms=1)
    with pytest.raises(UsageError, match="'gpu-9' is not on this machine"):
        runtime.metrics("gpu-9")


def test_affinity_reaches_every_thread_of_a_process() -> None:
    program = """
import threading, time
for _ in range(3):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print("ready", flush=True); time.sleep(60)
"""
    core = min(os.sched_getaffinity(0))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            threads = thread_ids(child.pid)
            assert len(threads) == 4
            CpuRuntime().set_compute_affinity(child.pid, 1 << core)
            assert all(os.sched_getaffinity(thread) == {core} for thread in threads)
        finally:
            child.kill()


def test_a_mask_without_a_core_and_cores_that_are_not_there_are_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"mask 0x0: bits of 0x"):
        make_runtime(tmp_path).set_compute_affinity(os.getpid(), 0)
    with pytest.raises(UsageError, match=r"mask 0x1[0]+: bits of"):
        make_runtime(tmp_path).set_compute_affinity(os.getpid(), 1 << 4000)
    with pytest.raises(UsageError, match=r"cores \[4000\]"):
        pin_threads(os.getpid(), [4000])


def test_another_users_process_needs_a_privilege_that_the_error_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: int, cores: list[int]) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    with pytest.raises(PrivilegeError, match=r"CAP_SYS_NICE is missing; run as the user who owns") as caught:
        pin_threads(os.getpid(), [0])
    assert caught.value.privilege == "CAP_SYS_NICE"


def test_what_a_machine_has_no_sensor_for_is_null_and_never_zero(tmp_path: Path) -> None:
    clock = Clock()
    runtime = make_runtime(tmp_path, clock)
    runtime.metrics(device_of(runtime))
    clock.now += 1.0
    metrics = runtime.metrics(device_of(runtime))
    assert len(METRIC_NAMES) == 17
    known = {name for name in METRIC_NAMES if getattr(metrics, name) is not None}
    assert known <= {"device_utilization_percent", "memory_used_bytes"}
    assert metrics.memory_used_bytes


def test_sensors_that_are_there_give_clock_power_temperature_and_throttling(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    for core in cores:
        write(tmp_path / f"devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq", "3000000\n")
        write(tmp_path / f"devices/system/cpu/cpu{core}/thermal_throttle/core_throttle_count", "5\n")
    write(tmp_path / "class/powercap/intel-rapl:0/energy_uj", "1000000\n")
    write(tmp_path / "class/hwmon/hwmon0/name", "k10temp\n")
    write(tmp_path / "class/hwmon/hwmon0/temp1_input", "61500\n")
    write(tmp_path / "devices/system/edac/mc/mc0/ce_count", "3\n")
    write(tmp_path / "devices/system/edac/mc/mc0/ue_count", "0\n")
    clock = Clock()
    runtime = make_runtime(tmp_path, clock)
    runtime.metrics(device_of(runtime))
    clock.now += 2.0
    write(tmp_path / "class/powercap/intel-rapl:0/energy_uj", "61000000\n")
    metrics = runtime.metrics(device_of(runtime))
    assert (metrics.sm_clock_mhz, metrics.power_watts, metrics.temperature_celsius) == (3000.0, 30.0, 61.5)
    assert (metrics.clock_throttle_reasons, metrics.recovery_state) == ([], "ok")
    write(tmp_path / f"devices/system/cpu/cpu{cores[0]}/thermal_throttle/core_throttle_count", "9\n")
    clock.now += 1.0
    assert runtime.metrics(device_of(runtime)).clock_throttle_reasons == ["thermal"]


def test_memory_errors_and_cores_switched_off_are_told_once(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    errors = tmp_path / "devices/system/edac/mc/mc0"
    write(errors / "ce_count", "3\n")
    write(errors / "ue_count", "0\n")
    write(tmp_path / f"devices/system/cpu/cpu{core}/online", "1\n")
    runtime = make_runtime(tmp_path)
    assert runtime.health_events() == []
    write(errors / "ce_count", "4\n")
    write(errors / "ue_count", "2\n")
    write(tmp_path / f"devices/system/cpu/cpu{core}/online", "0\n")
    events = {event.kind + " " + event.severity: event for event in runtime.health_events()}
    assert set(events) == {"memory_error fatal", "memory_error warning", "cores_offline fatal"}
    assert events["cores_offline fatal"].mask == 1 << core
    assert events["memory_error fatal"].mask == 0
    assert runtime.health_events() == []


def resctrl_folder(tmp_path: Path) -> Path:
    root = tmp_path / "resctrl"
    write(root / "info/MB/min_bandwidth", "10\n")
    write(root / "info/MB/bandwidth_gran", "10\n")
    write(root / "schemata", "    MB:0=100;1=100\n    L3:0=fff;1=fff\n")
    return root


def test_resctrl_holds_a_process_to_its_share_in_the_hardwares_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUPERINFER_CACHE", str(tmp_path / "cache"))  # a curve of an earlier run would do as well
    root = resctrl_folder(tmp_path)
    runtime = CpuRuntime(sensors=CpuSensors(tmp_path), resctrl=Resctrl(root), curve=curve)
    with pytest.raises(UsageError, match="measure bandwidth_curve first"):
        runtime.limit_bandwidth(os.getpid(), 50.0)
    runtime.bandwidth_curve(device_of(runtime))
    runtime.limit_bandwidth(os.getpid(), 50.0)
    group = root / f"superinfer-{os.getpid()}"
    assert (group / "schemata").read_text() == "MB:0=20;1=20\n"
    assert int((group / "tasks").read_text()) in thread_ids(os.getpid())
    runtime.limit_bandwidth(os.getpid(), 1.0)
    assert (group / "schemata").read_text() == "MB:0=10;1=10\n"


def test_resctrl_says_what_is_missing_and_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capable, plain = tmp_path / "capable", tmp_path / "plain"
    capable.write_text("flags\t\t: fpu mba cat_l3\n")
    plain.write_text("flags\t\t: fpu\n")
    with pytest.raises(UnsupportedError, match="has no memory bandwidth allocation"):
        Resctrl(tmp_path / "none", plain).limit(1, 50)
    with pytest.raises(UnsupportedError, match="CONFIG_X86_CPU_RESCTRL"):
        Resctrl(tmp_path / "none", capable).limit(1, 50)
    (tmp_path / "empty").mkdir()
    with pytest.raises(PrivilegeError, match=r"mounted resctrl file system is missing; as root: mount -t resctrl"):
        Resctrl(tmp_path / "empty", capable).limit(1, 50)
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: (_ for _ in ()).throw(PermissionError(13, "denied")))
    with pytest.raises(PrivilegeError, match=r"write access to resctrl is missing; run as root"):
        Resctrl(resctrl_folder_made(tmp_path), capable).limit(1, 50)


def resctrl_folder_made(tmp_path: Path) -> Path:
    """A mounted one, made without `Path.mkdir`, which the caller has broken."""
    os.makedirs(tmp_path / "mounted/info/MB")
    return tmp_path / "mounted"


def test_the_measured_curve_has_a_positive_rate_for_one_core_and_for_all() -> None:
    cores = sorted(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    points = measure_curve(cores, buffer_bytes=2**20, read_s=0.01)
    assert points[0].slices == 1
    assert points[-1].slices == len(cores)
    assert all(point.gb_per_s > 0.1 for point in points)
    assert os.sched_getaffinity(0) == before
    assert threading.active_count() >= 1
