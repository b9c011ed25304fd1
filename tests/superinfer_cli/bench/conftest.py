"""Scenario text, a latency model and the toy engine for bench tests."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

from superinfer.cli.bench.scenario import parse_scenario

TOY = str(Path(__file__).parents[2] / "executor" / "support")
sys.path.insert(0, TOY)

SCENARIO = """
name: small
requests: 40
rate_rps: 100
warmup: 2
classes:
  - service_id: triage
    share: 0.75
    prompt_tokens: {kind: uniform, low: 5, high: 20}
    output_tokens: 6
    slo: {slo_scale: 3}
  - service_id: report
    share: 0.25
    prompt_tokens: {kind: lognormal, median: 60, sigma: 0.5, low: 30, high: 120}
    output_tokens: {kind: uniform, low: 10, high: 20}
    slo: {latency_ms: 5000, ttft_scale: 4}
"""


@pytest.fixture
def scenario():
    return parse_scenario(SCENARIO, "small.yaml")


@pytest.fixture
def model():
    from small_model import MODEL

    return MODEL.fresh()


@pytest.fixture
def toy_processes(monkeypatch, tmp_path):
    """Child processes find the toy runner, and every socket directory lies in the test's own folder."""
    sockets = tmp_path / "sockets"
    sockets.mkdir()
    monkeypatch.setenv("PYTHONPATH", TOY, prepend=os.pathsep)
    monkeypatch.setenv("TMPDIR", str(sockets))
    monkeypatch.setattr(tempfile, "tempdir", str(sockets))
