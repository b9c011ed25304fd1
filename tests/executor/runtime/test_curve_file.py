"""Kept bandwidth curves: what cannot be true is not believed, and where nothing can be kept nothing fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from superinfer.executor.runtime.cpu import CpuRuntime
from superinfer.executor.runtime.curve_file import curve_path, load_curve, save_curve
from superinfer.executor.runtime.description import BandwidthPoint

DEVICE = CpuRuntime().topology().devices[0]
CURVE = [BandwidthPoint(mask=1, gb_per_s=9.5)]


def test_a_damaged_or_impossible_curve_is_as_good_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERINFER_CACHE", str(tmp_path))
    save_curve("cpu", DEVICE, CURVE)
    assert load_curve("cpu", DEVICE) == CURVE
    assert not list(tmp_path.rglob("*.partial"))
    for text in (b"", b"[", b"\xff", b"{}", b'[{"mask":1,"gb_per_s":-5}]', b'[{"mask":0,"gb_per_s":5}]'):
        curve_path("cpu", DEVICE).write_bytes(text)
        assert load_curve("cpu", DEVICE) == []


def test_a_cache_that_cannot_be_written_keeps_no_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SUPERINFER_CACHE", str(tmp_path / "file"))
    save_curve("cpu", DEVICE, CURVE)
    assert load_curve("cpu", DEVICE) == []
