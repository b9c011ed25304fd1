from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from superinfer.cli.bench.command import fault_lines
from superinfer.cli.bench.session import BenchResult, raise_engine_error
from superinfer.cli.main import app
from superinfer.contracts.errors import EngineError, UsageError
from superinfer.executor.journal import Added, begin, read_journal, repeat
from superinfer.scheduler.outputs import FinishOutput


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--policy", "lifo"], ["lifo", "slack", "fcfs", "round_robin", "priority", "edf"]),
        (["--policy", "fcfs", "--policy", "fcfs"], ["fcfs", "twice"]),
        (["--load", "1", "--rate", "2"], ["--load", "--rate"]),
        (["--load", "0"], ["--load 0", "above 0"]),
        (["--rate", "nan"], ["--rate nan"]),
        (["--slo-scale", "-1"], ["--slo-scale -1"]),
        (["--dtype", "float16"], ["float16", "bfloat16"]),
        (["--kv-cache-memory", "plenty"], ["--kv-cache-memory", "plenty"]),
        (["--decay-profile", "nowhere.yaml"], ["nowhere.yaml", "cannot be read"]),
        (["--simulate", "--journal"], ["--journal", "--simulate"]),
        (["--domain-kind", "int4=1"], ["--domain-kind 'int4=1'", "like int8=1"]),
        (["--domain-kind", "int8=1", "--domains", "2"], ["--domains 2", "--domain-kind"]),
        (["nightmare"], ["nightmare", "mixed, jitter, fault"]),
        (["fault", "--out", os.path.dirname(__file__)], ["--out", "exists", "--force"]),
    ],
)
def test_a_wrong_argument_is_one_clear_error_before_anything_runs(arguments, parts):
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert isinstance(result.exception, UsageError)
    message = str(result.exception)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_a_failed_engine_is_exit_code_7_after_the_results(tmp_path):
    with pytest.raises(EngineError, match="ended under load") as error:
        raise_engine_error(BenchResult({}, tmp_path, "the engine process ended under load"))
    assert error.value.exit_code == 7
    raise_engine_error(BenchResult({}, tmp_path, None))


def test_a_fault_line_says_what_was_lost_and_verified(tmp_path):
    fault = {
        "kind": "kill",
        "domain_id": "0",
        "time_s": 12.3,
        "moved_requests": 3,
        "longest_gap_ms": 456.7,
        "time_until_up_s": None,
        "lost": 0,
        "duplicated": 0,
        "tokens_verified": 4,
        "tokens_compared": 5,
    }
    (line,) = fault_lines(BenchResult({"runs": [{"policy": "slack", "faults": [fault]}]}, tmp_path, None))
    for part in ("slack", "12.3 s", "3 requests moved", "457 ms", "lost 0", "4 of 5"):
        assert part in line


SHORT = """
name: short
requests: 8
load: 0.9
classes:
  - {service_id: triage, share: 0.5, prompt_tokens: 30, output_tokens: 4, slo: {slo_scale: 3}, priority: 2}
  - {service_id: report, share: 0.5, prompt_tokens: 90, output_tokens: 12, slo: {slo_scale: 6}}
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_bench_on_the_real_model_compares_policies_on_the_same_requests(tmp_path):
    out, scenario = tmp_path / "run", tmp_path / "short.yaml"
    scenario.write_text(SHORT)
    command = [sys.executable, "-m", "superinfer.cli.main", "bench", str(scenario)]
    command += ["--policy", "slack", "--policy", "fcfs", "--journal", "--out", str(out), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["simulated"] is False
    assert all(run["completed"] == 8 for run in summary["runs"])
    assert summary["token_agreement"]["compared"] == 8
    for policy in ("slack", "fcfs"):
        first, *entries = read_journal(out / f"journal-{policy}.jsonl")
        scheduler = begin(first)
        ended = [each for entry in entries for each in repeat(scheduler, entry) if isinstance(each, FinishOutput)]
        requests = {entry.request.request_id for entry in entries if isinstance(entry, Added)}
        assert {each.request_id for each in ended} == requests
        assert len(requests) >= 8
        assert not list(scheduler.open_sequences)
    for run in summary["runs"]:
        asked = run["predictions"]["contracts"]
        assert sum(figures["ttft"]["count"] for figures in asked.values()) == 8
        assert run["predictions"]["steps"]["count"] > 8
    assert (out / "calibration.png").stat().st_size > 5000
