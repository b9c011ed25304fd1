"""What is told of the device."""

from __future__ import annotations

from pathlib import Path

from superinfer.profiler.device import device_name, memory_read_gb_per_s


def test_the_name_is_the_cpu_model_string(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Some CPU @ 3.00GHz\nflags\t: fpu\nmodel name\t: Other\n")
    assert device_name(cpuinfo) == "Some CPU @ 3.00GHz"


def test_without_a_model_string_there_is_still_a_name(tmp_path: Path) -> None:
    assert device_name(tmp_path / "none")
    (tmp_path / "arm").write_text("processor\t: 0\nBogoMIPS\t: 50.00\n")
    assert device_name(tmp_path / "arm")


def test_memory_bandwidth_is_plausible() -> None:
    assert 0.1 < memory_read_gb_per_s(64 * 2**20) < 2000
