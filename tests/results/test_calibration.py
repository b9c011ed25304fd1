"""Predictions held against what was: the errors, the line for people, the picture."""

from __future__ import annotations

import pytest

from superinfer.contracts.contract import SLOContract
from superinfer.results.calibration import (
    Calibration,
    Predicted,
    calibration_figures,
    calibration_line,
    error_figures,
)
from superinfer.results.run_folder import write_run_folder
from superinfer.results.summary import PolicyRun, summarize

CALIBRATION = Calibration(
    ttft=[Predicted("triage", 110.0, 100.0), Predicted("triage", 180.0, 200.0), Predicted("report", 500.0, 400.0)],
    tpot=[Predicted("report", 30.0, 40.0)],
    steps=[Predicted("decode", 20.0, 25.0), Predicted("mixed", 100.0, 100.0)],
    covered=0.5,
)


def test_errors_are_relative_to_what_was_real():
    figures = error_figures([Predicted("a", 110.0, 100.0), Predicted("a", 50.0, 100.0), Predicted("a", 300.0, 200.0)])
    assert figures == {
        "count": 3,
        "mean_error": pytest.approx((0.1 + 0.5 + 0.5) / 3),
        "median_error": pytest.approx(0.5),
        "p90_error": pytest.approx(0.5),
        "bias": pytest.approx(460 / 400 - 1),
    }


def test_where_nothing_was_real_there_is_no_error():
    assert error_figures([]) is None
    assert error_figures([Predicted("a", 1.0, 0.0)]) is None


def test_figures_are_by_contract_and_a_contract_may_lack_one_of_them():
    figures = calibration_figures(CALIBRATION)
    assert figures["contracts"]["triage"]["ttft"]["count"] == 2
    assert figures["contracts"]["triage"]["tpot"] is None
    assert figures["contracts"]["report"]["tpot"]["mean_error"] == pytest.approx(0.25)
    assert figures["steps"]["below_p90"] == 0.5


def test_the_line_says_all_of_it():
    line = calibration_line("slack", calibration_figures(CALIBRATION))
    assert line == (
        "slack: predicted with a mean (median) error of: triage TTFT 10.0 (10.0) %; "
        "report TTFT 25.0 (25.0) %, TPOT 25.0 (25.0) %; steps 10.0 (10.0) %, 50 % below their p90"
    )
    assert calibration_line("fcfs", calibration_figures(Calibration())).endswith("of: nothing")


def test_a_run_with_predictions_has_them_in_its_summary_and_as_a_picture(tmp_path, outcome):
    contracts = {"triage": SLOContract(service_id="triage")}
    runs = [
        PolicyRun("slack", 1.0, [outcome(0)], contracts, calibration=CALIBRATION),
        PolicyRun("fcfs", 1.0, [outcome(0)], contracts),
    ]
    summary = summarize(runs, scenario="s", model="m", device="d", simulated=False)
    assert "predictions" in summary["runs"][0]
    assert "predictions" not in summary["runs"][1]
    folder = write_run_folder(tmp_path / "run", config={}, summary=summary, runs=runs)
    assert (folder / "calibration.png").read_bytes().startswith(b"\x89PNG")
    assert "calibration.png" in (folder / "report.html").read_text()
    plain = write_run_folder(tmp_path / "plain", config={}, summary=summary, runs=runs[1:])
    assert not (plain / "calibration.png").exists()
