"""`superinfer contracts plan` on small topologies, with a profile of made-up but consistent step times."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from superinfer.cli.contracts import app
from superinfer.contracts.errors import ContractError, SuperInferError, UsageError
from superinfer.profiler.architecture import load_architecture
from superinfer.profiler.latency_model import LatencyModel
from superinfer.profiler.static import static_features
from superinfer.profiler.store import (
    DeviceFeatures,
    FitErrors,
    Measurement,
    ModelProfile,
    latency_constants,
    save_profile,
)
from superinfer.scheduler.pareto import plan_allocation

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "torch_dtype": "float32",
}
MODEL = LatencyModel(1e-3, [(1, 1e-2), (8, 1.2e-2), (128, 6e-2), (512, 0.24)], 1e-7, 1e-5, 1e-8, 1e-5, 1e-4)
CONTRACTS = """
- {service_id: triage, latency_p99_ms: 900}
- {service_id: reports, latency_p99_ms: 8000}
- {service_id: unplanned, latency_p99_ms: 8000}
"""
TOPOLOGY = """
name: pair
nodes: [{name: n, devices: [{name: d, count: 2, memory_gb: 4, bandwidth_gb_per_s: 20}]}]
demands:
  triage: {rate_per_s: 1, prompt_tokens: 64, output_tokens: 8}
  reports: {rate_per_s: 0.5, prompt_tokens: 128, output_tokens: 64}
"""


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    architecture = load_architecture(tmp_path)
    profile = ModelProfile(
        model="tiny",
        dtype="float32",
        device=DeviceFeatures(name="Some CPU", threads=1),
        created="2026-01-01T00:00:00+00:00",
        architecture=architecture,
        static=static_features(architecture, "float32"),
        measured=Measurement(points=[], wall_s=1.0, prefill_gflop_per_s=1.0, decode_gb_per_s=1.0),
        latency=latency_constants(MODEL),
        fit=FitErrors(steps=1, shapes=1, median_relative_error=0.0, p90_relative_error=0.0),
    )
    paths = {"contracts": tmp_path / "contracts.yaml", "topology": tmp_path / "t.yaml", "profile": tmp_path / "p.json"}
    paths["contracts"].write_text(CONTRACTS)
    paths["topology"].write_text(TOPOLOGY)
    save_profile(paths["profile"], profile)
    return paths


def arguments(files: dict[str, Path], *more: str) -> list[str]:
    named = ["--topology", str(files["topology"]), "--profile", str(files["profile"])]
    return ["plan", str(files["contracts"]), *named, *more]


def run(files: dict[str, Path], *more: str) -> Any:
    return CliRunner().invoke(app, arguments(files, *more))


def error_of(files: dict[str, Path], *more: str) -> SuperInferError:
    error = run(files, *more).exception
    assert isinstance(error, SuperInferError), error
    return error


def test_the_tables_show_predictions_shares_and_the_frontier(files: dict[str, Path], tmp_path: Path) -> None:
    result = run(files, "--out", str(tmp_path / "pictures" / "plan.png"))
    assert result.exit_code == 0, result.exception
    for words in ("pair: 2 devices", "triage", "of 900", "n/d-0", "chosen", "predicted by a queueing model"):
        assert words in result.stdout
    assert "no demand is stated for unplanned" in result.stderr
    assert (tmp_path / "pictures" / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_json_is_alone_on_stdout_even_if_the_solver_writes_to_it_below_python(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def plan_aloud(*args: Any) -> Any:
        os.write(1, b"a note of the solver\n")
        return plan_allocation(*args)

    monkeypatch.setattr("superinfer.scheduler.pareto.plan_allocation", plan_aloud)
    app(arguments(files, "--json"), standalone_mode=False)
    captured = capfd.readouterr()
    assert "a note of the solver" in captured.err
    data = json.loads(captured.out)
    assert (data["schema"], data["feasible"], data["model"]) == ("superinfer.plan/1", True, "tiny")
    assert [each["name"] for each in data["chosen"]["contracts"]] == ["triage", "reports"]
    assert all(each["margin"] >= 0.999 for each in data["chosen"]["contracts"])
    assert data["chosen"] in data["frontier"]


def test_contracts_that_clash_are_named_and_the_exit_code_is_that_of_contracts(files: dict[str, Path]) -> None:
    files["topology"].write_text(TOPOLOGY.replace("count: 2, ", "").replace("0.5", "3.5"))
    error = error_of(files)
    assert isinstance(error, ContractError)
    assert str(error) == (
        "contracts triage, reports cannot all hold their bounds on 1 device (the smallest set that clashes)"
    )
    data = json.loads(run(files, "--json").stdout)
    assert data["feasible"] is False
    assert data["clash"] == {"contracts": ["triage", "reports"], "is_smallest": True}


def test_a_contract_that_cannot_hold_by_itself_is_named_alone(files: dict[str, Path]) -> None:
    files["contracts"].write_text(CONTRACTS.replace("900", "90"))
    assert str(error_of(files)) == (
        "contract triage cannot hold its bounds on 2 devices, even with all of them to itself"
    )


def test_wrong_arguments_and_files_are_one_line_each(files: dict[str, Path]) -> None:
    assert "ends in .png" in str(error_of(files, "--out", "plan.pdf"))
    assert "between 1 and 1000" in str(error_of(files, "--max-margin", "0.5"))
    assert "between 1 and 86400 seconds" in str(error_of(files, "--time-limit", "0"))
    assert "give one of them" in str(error_of(files, "--model", "tiny"))
    files["topology"].write_text(TOPOLOGY.replace("  triage:", "  triag:"))
    error = error_of(files)
    assert isinstance(error, UsageError)
    assert 'demands: contract "triag" is not registered' in str(error)
    files["topology"].write_text(TOPOLOGY[: TOPOLOGY.index("demands")])
    assert "demands: is missing" in str(error_of(files))
