from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from superinfer.cli.contracts import app
from superinfer.contracts import loading
from superinfer.contracts.errors import UnknownContractError

EXAMPLES = str(Path(loading.__file__).parent / "examples")
runner = CliRunner()


def test_check_prints_a_row_for_each_contract_and_sub_task() -> None:
    result = runner.invoke(app, ["check", EXAMPLES], env={"COLUMNS": "160"})
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
    result = runner.invoke(app, ["show", str(tmp_path), "a-b"], env={"COLUMNS": "160"})
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
