from __future__ import annotations

import csv
import io
import json
import re

import pytest
import yaml
from rich.console import Console

from superinfer.contracts.errors import UsageError
from superinfer.results.run_folder import check_run_folder, write_run_folder
from superinfer.results.summary import PolicyRun, summarize
from superinfer.results.table import render_table

CONFIG = {"scenario": {"name": "mixed"}, "seed": 0}
FAULT = {"kind": "kill", "domain_id": "0", "time_s": 4.0, "time_until_up_s": 1.5}


@pytest.fixture
def runs(outcome, contract):
    def run(policy, slow_from, faults=()):
        outcomes = [
            outcome(number, scheduled_s=float(number), e2e_s=0.5 if number < slow_from else 2.0, token_hash="ab")
            for number in range(10)
        ]
        return PolicyRun(policy, 12.0, outcomes, {"triage": contract()}, faults=list(faults))

    return [run("slack", 9, [FAULT]), run("fcfs", 4, [FAULT])]


@pytest.fixture
def summary(runs):
    return summarize(runs, scenario="mixed", model="tiny", device="cpu", simulated=False)


def test_the_summary_has_every_agreed_key_and_the_right_figures(summary):
    assert summary["schema"] == "superinfer.bench/1"
    assert summary.keys() >= {"simulated", "scenario", "model", "device", "runs"}
    slack, fcfs = summary["runs"]
    assert slack.keys() >= {
        "policy",
        "duration_s",
        "offered",
        "completed",
        "failed",
        "attainment",
        "goodput_rps",
        "output_tokens_per_s",
        "contracts",
        "faults",
    }
    figures = slack["contracts"]["triage"]
    assert figures.keys() >= {"offered", "attainment", "attainment_ci95", "deadline_ms", "missed_by_stage"}
    for metric in ("e2e_ms", "ttft_ms", "tpot_ms"):
        assert figures[metric].keys() >= {"p50", "p95", "p99", "mean", "std"}
    assert (slack["attainment"], fcfs["attainment"]) == (0.9, 0.4)
    assert (slack["contested_s"], slack["duration_s"]) == (10.0, 12.0)
    assert slack["goodput_rps"] == pytest.approx(9 / 10)
    assert slack["output_tokens_per_s"] == pytest.approx(110 / 12)
    assert summary["token_agreement"] == {"compared": 10, "equal": 10}


def test_a_best_effort_contract_has_no_attainment(outcome, contract):
    free = contract(None)
    run = PolicyRun("fcfs", 1.0, [outcome(bound=free)], {"triage": free})
    figures = summarize([run], scenario="s", model="m", device="d", simulated=True)["runs"][0]
    assert figures["attainment"] is None
    assert figures["contracts"]["triage"]["attainment"] is None
    assert figures["contracts"]["triage"]["attainment_ci95"] is None


def test_a_run_with_no_outcomes_can_be_summarized_and_written(tmp_path, contract):
    runs = [PolicyRun("fcfs", 0.0, [], {"triage": contract()}, interrupted=True)]
    summary = summarize(runs, scenario="s", model="m", device="d", simulated=False)
    assert summary["interrupted"] is True
    folder = write_run_folder(tmp_path / "run", config=CONFIG, summary=summary, runs=runs)
    assert json.loads((folder / "summary.json").read_text())["runs"][0]["attainment"] is None


def test_the_folder_holds_every_promised_file_with_matching_contents(tmp_path, summary, runs):
    folder = write_run_folder(tmp_path / "deep" / "run", config=CONFIG, summary=summary, runs=runs)
    assert {path.name for path in folder.iterdir()} == {
        "config.yaml",
        "summary.json",
        "summary.csv",
        "per_request.jsonl",
        "attainment.png",
        "latency_cdf.png",
        "fault_timeline.png",
        "report.html",
    }
    assert [path.name for path in folder.parent.iterdir()] == ["run"]
    assert json.loads((folder / "summary.json").read_text()) == json.loads(json.dumps(summary))
    assert yaml.safe_load((folder / "config.yaml").read_text()) == CONFIG
    lines = [json.loads(line) for line in (folder / "per_request.jsonl").read_text().splitlines()]
    assert [line["policy"] for line in lines] == ["slack"] * 10 + ["fcfs"] * 10
    assert sum(line["status"] == "met" for line in lines) == 13
    rows = list(csv.DictReader(io.StringIO((folder / "summary.csv").read_text())))
    assert [(row["policy"], float(row["attainment"])) for row in rows] == [("slack", 0.9), ("fcfs", 0.4)]
    for picture in folder.glob("*.png"):
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_runs_without_faults_have_no_fault_picture(tmp_path, runs):
    for run in runs:
        run.faults = []
    summary = summarize(runs, scenario="s", model="m", device="d", simulated=False)
    folder = write_run_folder(tmp_path / "run", config=CONFIG, summary=summary, runs=runs)
    assert not (folder / "fault_timeline.png").exists()


def test_the_report_needs_no_other_file(tmp_path, summary, runs):
    page = (write_run_folder(tmp_path / "r", config=CONFIG, summary=summary, runs=runs) / "report.html").read_text()
    sources = re.findall(r'(?:src|href)="([^"]*)', page)
    assert len(sources) == 3
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert "90.0 %" in page


def test_a_model_name_cannot_inject_markup_into_report_or_table(tmp_path, runs):
    summary = summarize(runs, scenario="[bold]s", model="<script>x</script>", device="d", simulated=True)
    folder = write_run_folder(tmp_path / "r", config={"m": "<script>"}, summary=summary, runs=runs)
    assert "<script>" not in (folder / "report.html").read_text()
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(render_table(summary))
    assert "[bold]s" in console.export_text()


def test_simulated_figures_are_labelled_in_table_and_report(tmp_path, runs):
    summary = summarize(runs, scenario="s", model="m", device="d", simulated=True)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(render_table(summary))
    assert "SIMULATED" in console.export_text()


def test_an_existing_run_is_kept_unless_forced(tmp_path, summary, runs):
    folder = write_run_folder(tmp_path / "run", config=CONFIG, summary=summary, runs=runs)
    (folder / "note.txt").write_text("mine")
    with pytest.raises(UsageError, match="--force"):
        check_run_folder(folder, force=False)
    other = write_run_folder(folder, config=CONFIG, summary=summary, runs=runs)
    assert other.name == "run-2"
    assert (folder / "note.txt").exists()
    check_run_folder(folder, force=True)
    replaced = write_run_folder(folder, config=CONFIG, summary=summary, runs=runs, force=True)
    assert replaced == folder
    assert not (folder / "note.txt").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run-2"]


def test_force_never_removes_a_folder_that_is_not_a_run(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="other than a run"):
        check_run_folder(tmp_path, force=True)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(UsageError, match="not a folder"):
        check_run_folder(file, force=True)


def test_nothing_is_left_behind_when_writing_fails(tmp_path, summary, runs):
    with pytest.raises(yaml.YAMLError):
        write_run_folder(tmp_path / "run", config={"bad": object()}, summary=summary, runs=runs)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_could_not_be_written_is_refused_before_it_starts(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written"):
        check_run_folder(tmp_path / "file" / "run", force=False)
    check_run_folder(tmp_path / "new" / "run", force=False)
    assert not (tmp_path / "new" / "run").exists()
