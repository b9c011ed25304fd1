from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from superinfer.cli.contracts import app
from superinfer.contracts import loading
from superinfer.contracts.errors import ContractError, ModelError, UnknownContractError, UsageError
from superinfer.executor.profile_model import THREADS, resolve_dtype
from superinfer.profiler.architecture import ModelArchitecture
from superinfer.profiler.device import device_name
from superinfer.profiler.latency_model import LatencyModel
from superinfer.profiler.static import static_features
from superinfer.profiler.store import (
    DeviceFeatures,
    FitErrors,
    Measurement,
    ModelProfile,
    latency_constants,
    profile_path,
    save_profile,
)

EXAMPLES = str(Path(loading.__file__).parent / "examples")
runner = CliRunner()


def test_check_prints_a_row_for_each_contract_and_sub_task() -> None:
    result = runner.invoke(app, ["check", EXAMPLES])
    assert result.exit_code == 0
    for name in ("risk-scoring", "hospital-core-emergency-triage", "customer-assistant/summary"):
        assert name in result.stdout


def test_check_lists_every_problem_on_stderr_and_exits_4(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("service_id: a b\nslo: {latency: {p99_ms: -5}}")
    result = runner.invoke(app, ["check", str(file)])
    assert result.exit_code == 4
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        f"error: {file}: service_id: \"a b\" is not accepted; expected lower-case letters, digits and '-' ([a-z0-9-]+)",
        f"error: {file}: slo.latency.p99_ms: -5 is not accepted; expected a number > 0",
    ]


def test_check_json_says_what_compiled_or_what_is_wrong(tmp_path: Path) -> None:
    good = json.loads(runner.invoke(app, ["check", EXAMPLES, "--json"]).stdout)
    assert good["ok"] is True
    assert [contract["service_id"] for contract in good["contracts"]] == sorted(
        contract["service_id"] for contract in good["contracts"]
    )
    result = runner.invoke(app, ["check", str(tmp_path / "absent"), "--json"])
    assert result.exit_code == 4
    assert json.loads(result.stdout)["ok"] is False


def test_show_tells_inherited_from_tightened_from_own(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("{service_id: a, latency_p99_ms: 100, availability: 0.99}")
    (tmp_path / "b.yaml").write_text("{service_id: a-b, latency_p99_ms: 200, tpot_p99_ms: 5}")
    result = runner.invoke(app, ["show", str(tmp_path), "a-b"])
    assert result.exit_code == 0
    assert "tightened by a (declared 200)" in result.stdout
    assert "inherited from a" in result.stdout
    data = json.loads(runner.invoke(app, ["show", str(tmp_path), "a-b", "--json"]).stdout)
    [entry] = data["contracts"]
    assert entry["parent_id"] == "a"
    assert entry["origins"]["tpot.p99_ms"]["kind"] == "own"
    assert entry["contract"]["latency"] == [{"percentile": 0.99, "bound_ms": 100.0}]


def test_show_of_an_unknown_service_suggests_the_nearest() -> None:
    result = runner.invoke(app, ["show", EXAMPLES, "riskscoring"])
    assert isinstance(result.exception, UnknownContractError)
    assert "did you mean risk-scoring?" in str(result.exception)


@pytest.mark.parametrize(
    ("form", "first"), [("openslo", "apiVersion: openslo/v1"), ("sloth", "version: prometheus/v1")]
)
def test_export_writes_only_the_documents_to_stdout_and_notes_what_it_leaves_out(form: str, first: str) -> None:
    result = runner.invoke(app, ["export", EXAMPLES, "--format", form])
    assert result.exit_code == 0
    assert result.stdout.startswith(first)
    assert all(isinstance(document, dict) for document in yaml.safe_load_all(result.stdout))
    assert "hospital-core-emergency-triage: max_jitter_ms" in result.stderr


def test_export_of_nothing_bounded_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("service_id: a\nslo: {availability: 0.9}")
    result = runner.invoke(app, ["export", str(tmp_path), "--format", "sloth"])
    assert isinstance(result.exception, ContractError)
    assert "nothing to export" in str(result.exception)
    assert result.stdout == ""


@pytest.fixture
def profiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model whose cached profile says: 10 ms a step, and 1 ms more for each further prompt token."""
    monkeypatch.setenv("SUPERINFER_CACHE", str(tmp_path / "cache"))
    architecture = ModelArchitecture(
        model_type="llama",
        vocab_size=300,
        hidden_size=64,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=16,
        intermediate_size=128,
    )
    model = LatencyModel(0.01, [(1, 0.0), (101, 0.1)], 0.0, 0.0, 0.0, 0.0, 0.0)
    profile = ModelProfile(
        model="org/tiny",
        dtype="float32",
        device=DeviceFeatures(name=device_name(), threads=THREADS),
        created="2026-01-01T00:00:00+00:00",
        architecture=architecture,
        static=static_features(architecture, "float32"),
        measured=Measurement(points=[], wall_s=0.0, prefill_gflop_per_s=1.0, decode_gb_per_s=1.0),
        latency=latency_constants(model),
        fit=FitErrors(steps=0, shapes=0, median_relative_error=0.0, p90_relative_error=0.0),
    )
    save_profile(profile_path("org/tiny", device_name(), resolve_dtype("float32"), THREADS), profile)
    return "org/tiny"


def check_feasibility(path: Path, model: str, *more: str) -> Result:
    return runner.invoke(app, ["check", str(path), "--model", model, "--dtype", "float32", *more])


def test_check_with_a_model_tells_bounds_out_of_reach_with_the_figure(tmp_path: Path, profiled: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("{service_id: a, latency_p99_ms: 250, ttft_p95_ms: 100}")
    assert check_feasibility(file, profiled).exit_code == 0
    result = check_feasibility(file, profiled, "--prompt-tokens", "101", "--output-tokens", "11")
    assert result.exit_code == 4
    assert result.stderr.splitlines() == [
        "error: contract 'a': ttft p95 100 ms is below the 110 ms "
        "that a prompt of 101 tokens takes alone on this device"
    ]
    assert "NO" in result.stdout
    long = ("--prompt-tokens", "101", "--output-tokens", "11", "--json")
    data = json.loads(check_feasibility(file, profiled, *long).stdout)
    assert data["ok"] is False
    assert [(one["milestone"], round(one["unloaded_ms"]), one["attainable"]) for one in data["feasibility"]] == [
        ("latency", 210, True),
        ("ttft", 110, False),
    ]
    allowed = check_feasibility(file, profiled, *long, "--allow-unattainable")
    assert allowed.exit_code == 0
    assert json.loads(allowed.stdout)["feasibility"] == data["feasibility"]


def test_check_measures_nothing_and_says_how_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERINFER_CACHE", str(tmp_path))
    result = check_feasibility(Path(EXAMPLES), "smollm2-135m-instruct")
    assert isinstance(result.exception, ModelError)
    assert "make one with: superinfer profile smollm2-135m-instruct" in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_request_sizes_without_a_model_are_refused() -> None:
    result = runner.invoke(app, ["check", EXAMPLES, "--prompt-tokens", "5"])
    assert isinstance(result.exception, UsageError)
