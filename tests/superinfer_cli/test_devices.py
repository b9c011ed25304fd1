"""`superinfer devices` says what there is; what a CPU has no figure for is null."""

from __future__ import annotations

import json
import os

import pytest
from typer.testing import CliRunner

from superinfer.cli.devices import describe
from superinfer.cli.devices_tables import device_tables
from superinfer.cli.main import app
from superinfer.executor.runtime.metrics import METRIC_NAMES
from superinfer.executor.runtime.simulated import SimulatedRuntime
from superinfer.scheduler.topology import example_names, load_topology


@pytest.mark.parametrize("command", [["devices", "--no-measure", "--json"]])
def test_json_has_devices_metrics_and_mechanisms(command: list[str]) -> None:
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    described = json.loads(result.stdout)
    usable = sum(int(device["usable_mask"], 16).bit_count() for device in described["devices"])
    assert usable == len(os.sched_getaffinity(0))
    for device in described["devices"]:
        assert tuple(device["metrics"]) == METRIC_NAMES
        assert device["metrics"]["nvlink_tx_bytes_per_s"] is None
        assert device["bandwidth_by_slices"] == []
    assert {"thread affinity", "ledger and step planner", "idle class (SCHED_IDLE)", "resctrl MBA"} <= {
        each["name"] for each in described["mechanisms"]
    }


def test_any_runtime_can_be_described_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    from pathlib import Path

    monkeypatch.setattr("superinfer.cli.devices.SAMPLE_S", 0.0)
    runtime = SimulatedRuntime(load_topology(Path(example_names()[0])))
    described = describe(runtime, measure=True)
    assert described["devices"][0]["bandwidth_by_slices"][-1]["gb_per_s"] == pytest.approx(3350)
    assert described["devices"][0]["reservable_gb_per_s"] == pytest.approx(0.9 * 3350)
    assert len(device_tables(described)) == 4
