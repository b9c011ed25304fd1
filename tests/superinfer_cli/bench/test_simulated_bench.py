"""`superinfer bench --simulate`: no process, no weights, and every figure labelled."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from typer.testing import CliRunner

from superinfer.cli import domain_kinds
from superinfer.cli import profile as profile_command
from superinfer.cli.bench import capacity
from superinfer.cli.bench.target import cluster_target, find_architecture
from superinfer.cli.main import app
from superinfer.contracts.errors import ModelError, UsageError
from superinfer.executor.models import catalog
from superinfer.executor.models.source import ModelSource
from superinfer.profiler import store
from superinfer.profiler.drift import Drift, StepNoise
from superinfer.profiler.known_architectures import known_architectures
from superinfer.profiler.static import kv_bytes_per_token
from superinfer.results import run_folder
from superinfer.scheduler.topology import load_topology

TOPOLOGY = """
name: pair
nodes:
  - {name: n, count: 2, host_link_gb_per_s: 50, devices: [{name: g, count: 2, type: L40S}]}
serving: {tensor_parallel: 2, restart_s: 0.5, host_kv_gb: 10}
"""


@pytest.fixture(autouse=True)
def quick_capacity(monkeypatch):
    """Capacity from fewer requests than usual: what it is does not matter here."""
    monkeypatch.setattr(capacity, "REQUESTS_PER_DOMAIN", 60)


@pytest.fixture(autouse=True)
def titles(monkeypatch):
    """Titles of the pictures that would be drawn; drawing them takes seconds and is tested with the results."""
    seen: list[str] = []
    monkeypatch.setattr(run_folder, "plot_all", lambda runs, title: seen.append(title) or {})
    return seen


@pytest.fixture
def topology(tmp_path):
    path = tmp_path / "pair.yaml"
    path.write_text(TOPOLOGY)
    return path


def bench(*arguments):
    return CliRunner().invoke(app, ["bench", *(str(argument) for argument in arguments)])


def test_a_cluster_is_simulated_and_everything_that_is_written_says_so(tmp_path, topology, titles):
    out = tmp_path / "run"
    arguments = (
        "fault",
        "--simulate",
        "--topology",
        topology,
        "--model",
        "llama-3-8b",
        "--requests",
        120,
        "--load",
        0.6,
    )
    result = bench(*arguments, "--policy", "slack", "--policy", "fcfs", "--out", out)
    assert result.exit_code == 0, result.stderr
    assert "SIMULATED" in result.stdout
    assert "4 × L40S in 2 domain(s) of 2" in result.stdout
    assert "SIMULATED" in result.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert summary["simulated"] is True
    assert (summary["model"], summary["domains"], summary["token_agreement"]) == ("llama-3-8b", 2, None)
    assert [run["policy"] for run in summary["runs"]] == ["slack", "fcfs"]
    assert all(run["completed"] == 120 for run in summary["runs"])
    assert {row["simulated"] for row in csv.DictReader((out / "summary.csv").open())} == {"True"}
    assert "SIMULATED" in (out / "report.html").read_text()
    assert ["SIMULATED" in title for title in titles] == [True]
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["options"]["checkpoint"]["enabled"] is True
    assert config["options"]["out"] == str(out)
    assert config["simulated"] is True
    assert config["target"]["data_sheet"]["source"].startswith("https://")
    assert config["target"]["efficiency"]["residual_sigma"] == config["target"]["sigma"]
    for run in summary["runs"]:
        (fault,) = run["faults"]
        assert fault["domain_id"] == "n-0"
        assert fault["time_until_up_s"] == pytest.approx(0.5)
        assert fault["lost"] == 0
    again = tmp_path / "again"
    assert bench(*arguments, "--policy", "slack", "--out", again, "--json").exit_code == 0
    repeated = json.loads((again / "summary.json").read_text())
    assert repeated["runs"][0] == summary["runs"][0]


def test_without_a_topology_the_measured_profile_is_simulated(tmp_path, monkeypatch, model):
    architecture = known_architectures()["llama-3-8b"]
    measured = SimpleNamespace(
        latency_model=model,
        architecture=architecture,
        dtype="bfloat16",
        weight_dtype=None,
        created="now",
        noise=StepNoise(sigma=0.05, drift=Drift(sigma=0.1, lasts_s=2.0)),
        device=SimpleNamespace(name="some CPU"),
    )
    monkeypatch.setattr(catalog, "resolve_model", lambda name: ModelSource(name, tmp_path, True))
    monkeypatch.setattr(profile_command, "ensure_profile", lambda *args, **options: tmp_path / "profile.json")
    monkeypatch.setattr(store, "load_profile", lambda path: measured)
    arguments = (
        "mixed",
        "--simulate",
        "--model",
        "tiny",
        "--requests",
        30,
        "--policy",
        "fcfs",
        "--kv-cache-memory",
        "1GiB",
    )
    result = bench(*arguments, "--out", tmp_path / "run", "--json")
    assert result.exit_code == 0, result.stderr
    summary = json.loads(result.stdout)
    assert (summary["simulated"], summary["model"], summary["device"]) == (True, "tiny", "some CPU")
    assert summary["runs"][0]["completed"] == 30
    target = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["target"]
    assert (target["sigma"], target["drift"]) == (0.05, {"sigma": 0.1, "lasts_s": 2.0})


def test_workers_of_this_machine_in_several_precisions_are_simulated_as_kinds(tmp_path, monkeypatch, model):
    measured = SimpleNamespace(
        latency_model=model,
        architecture=known_architectures()["llama-3-8b"],
        dtype="float32",
        weight_dtype=None,
        created="now",
        noise=None,
        device=SimpleNamespace(name="some CPU"),
    )
    monkeypatch.setattr(catalog, "resolve_model", lambda name: ModelSource(name, tmp_path, True))
    for module, name, made in (
        (profile_command, "ensure_profile", tmp_path / "profile.json"),
        (domain_kinds, "ensure_profile", tmp_path / "profile.json"),
        (store, "load_profile", measured),
        (domain_kinds, "load_profile", measured),
    ):
        monkeypatch.setattr(module, name, lambda *args, made=made, **options: made)
    shared = ("precision", "--simulate", "--model", "tiny", "--requests", 20, "--rate", 0.5, "--policy", "slack")
    precisions = ("--dtype", "float32", "--kv-cache-memory", "2GiB", "--json")
    both = bench(
        *shared, *precisions, "--domain-kind", "float32=1", "--domain-kind", "int8=1", "--out", tmp_path / "both"
    )
    assert both.exit_code == 0, both.stderr
    summary = json.loads(both.stdout)
    assert summary["domain_kinds"] == {"0": "float32", "1": "int8"}
    ran = {name: figures["served_by"] for name, figures in summary["runs"][0]["contracts"].items()}
    assert (ran["audit"]["float32"]["requests"], ran["audit"]["int8"]["requests"]) == (10, 0)
    assert ran["completion"]["int8"]["requests"] > 0
    rounded = bench(*shared, *precisions, "--domain-kind", "int8=2", "--out", tmp_path / "rounded")
    contracts = json.loads(rounded.stdout)["runs"][0]["contracts"]
    assert contracts["audit"]["missed_by_stage"] == {"rejected": 10}
    assert contracts["completion"]["served_by"] == {"int8": {"requests": 10, "met": contracts["completion"]["met"]}}


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--topology", "h100-4x8"], ["--topology", "--simulate"]),
        (["--simulate", "--topology", "h100-4x8", "--domain-kind", "int8=1"], ["--domain-kind", "--topology"]),
        (["--simulate", "--topology", "nowhere.yaml"], ["topology nowhere.yaml", "h100-4x8"]),
        (["--simulate", "--topology", "h100-4x8", "--domains", "2"], ["--domains", "--topology"]),
        (["cluster-jitter", "--simulate", "--topology", "h100-4x8", "--requests", "0"], ["requests"]),
    ],
)
def test_a_wrong_argument_is_one_clear_error(arguments, parts):
    result = bench(*arguments)
    message = str(result.exception) if isinstance(result.exception, UsageError) else result.stderr
    assert result.exit_code != 0
    for part in parts:
        assert part in message


def test_a_model_is_found_by_name_by_config_or_refused(tmp_path):
    config = {"model_type": "llama", "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 4, "intermediate_size": 128}
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    assert find_architecture("Llama-3-70B")[0] == "llama-3-70b"
    assert find_architecture(str(folder))[1] == find_architecture(str(folder / "config.json"))[1]
    assert find_architecture(str(folder / "config.json"))[0] == "small"
    with pytest.raises(ModelError, match=r"by shape alone: .*llama-3-70b"):
        find_architecture("llama-9")


def test_the_target_follows_from_topology_and_data_sheet(topology):
    target = cluster_target("llama-3-8b", topology, "auto")
    architecture = known_architectures()["llama-3-8b"]
    block_bytes = 16 * kv_bytes_per_token(architecture, "bfloat16")
    assert target.block_copy_s == pytest.approx(block_bytes / 2 / 50e9)
    assert target.limits.host_blocks == int(10e9 / block_bytes)
    kv_bytes = target.domains[0].kv_blocks * block_bytes
    assert kv_bytes + 2 * architecture.parameters == pytest.approx(0.9 * 2 * 48e9, rel=0.001)
    assert target.restart_s == load_topology(topology).serving.restart_s == 0.5


def test_nodes_that_differ_are_simulated_as_kinds_by_their_own_figures():
    target = cluster_target("llama-3-70b", Path("h100-a100-4x8"), "auto")
    fast, slow = target.kinds
    assert [spec.kind for spec in target.domains] == [fast.kind_id] * 2 + [slow.kind_id] * 2
    assert fast.latency_model.unloaded_s(320, 6) < slow.latency_model.unloaded_s(320, 6)
    assert target.latency_model is fast.latency_model
    assert (target.limits.max_running, slow.max_running) == (256, 192)
    assert target.copies_s[slow.kind_id] > target.copies_s[fast.kind_id] == target.block_copy_s
    assert [kind.loses_precision for kind in target.kinds] == [False, False]


def test_a_node_that_serves_in_fewer_bytes_is_for_contracts_that_permit_it(tmp_path):
    topology = tmp_path / "t.yaml"
    topology.write_text(
        "{name: t, serving: {tensor_parallel: 8}, nodes: ["
        "{name: a, devices: [{name: g, count: 8, type: H100-SXM5}]},"
        "{name: b, devices: [{name: g, count: 8, type: L40S}], serving: {precision: float8}}]}"
    )
    exact, small = cluster_target("llama-3-70b", topology, "auto").kinds
    assert (exact.precision, exact.loses_precision) == ("bfloat16", False)
    assert (small.precision, small.loses_precision) == ("float8", True)
    assert exact.kv_layout != small.kv_layout


def test_an_unequal_cluster_is_benched_by_name(tmp_path):
    out = tmp_path / "run"
    result = bench("cluster-unequal", "--simulate", "--topology", "h100-a100-4x8", "--requests", 60, "--out", out)
    assert result.exit_code == 0, result.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert summary["clairvoyant_bound"] is None
    assert "A100" in summary["device"]
    kinds = yaml.safe_load((out / "config.yaml").read_text())["target"]["kinds"]
    assert [kind["max_running"] for kind in kinds.values()] == [256, 192]
