"""Puts the toy runner and the engine harness within reach of these tests and of the processes they start."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

SUPPORT = str(Path(__file__).parent / "support")
sys.path.insert(0, SUPPORT)


@pytest.fixture
def toy_processes(monkeypatch, tmp_path):
    """Child processes find the toy runner; every socket directory lies in the folder that is returned."""
    sockets = tmp_path / "sockets"
    sockets.mkdir()
    monkeypatch.setenv("PYTHONPATH", SUPPORT, prepend=os.pathsep)
    monkeypatch.setenv("TMPDIR", str(sockets))
    monkeypatch.setattr(tempfile, "tempdir", str(sockets))
    return sockets
