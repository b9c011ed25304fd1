"""Tuning: the search includes the default, held-out seeds decide, the file is what the scheduler reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from superinfer.cli.bench.scenario import parse_scenario
from superinfer.cli.bench.target import SimulationTarget
from superinfer.cli.main import app
from superinfer.cli.tune.evaluate import Bench, Settings, prepare, promised_share
from superinfer.cli.tune.report import changes, profile_document, write_profile
from superinfer.cli.tune.search import search
from superinfer.cli.tune.verdict import Verdict, bootstrap_ci95, judge
from superinfer.contracts.contract import Bound, SLOContract
from superinfer.contracts.errors import UsageError
from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.config import DomainSpec, SchedulerConfig
from superinfer.scheduler.decay import DecayProfile, load_decay_profile
from superinfer.scheduler.policies.planner_config import PlannerConfig, planner_from_mapping
from superinfer.scheduler.policies.registry import make_policy
from superinfer.scheduler.policies.slack import SlackPolicy

SCENARIO = """
name: small
requests: 40
load: 0.6
classes:
  - {service_id: triage, share: 0.7, prompt_tokens: 30, output_tokens: 6, slo: {slo_scale: 3}, priority: 2}
  - {service_id: report, share: 0.2, prompt_tokens: 160, output_tokens: 20, slo: {slo_scale: 6}}
  - {service_id: batch, share: 0.1, prompt_tokens: 50, output_tokens: 5}
"""


@pytest.fixture
def model() -> LatencyModel:
    return LatencyModel(
        launch_s=0.03,
        linear_points=[(1, 0.0), (6, 0.02), (24, 0.13), (80, 0.33), (256, 0.9)],
        decode_context_s=8e-6,
        decode_s=1e-3,
        prefill_pair_s=2e-6,
        chunk_s=0.0,
        row_s=1e-3,
    )


@pytest.fixture
def bench(model: LatencyModel) -> Bench:
    target = SimulationTarget(
        model="small",
        device="simulated",
        dtype="float32",
        latency_model=model,
        domains=[DomainSpec("0", 4096)],
        limits=SchedulerConfig(),
        sigma=model.log_sigma,
        block_copy_s=0.0,
        restart_s=1.0,
        max_position=None,
        origin={},
    )
    return prepare(parse_scenario(SCENARIO, "small.yaml"), target)


DEFAULT = Settings(DecayProfile(), PlannerConfig())


def test_the_default_is_the_first_trial_and_the_best_is_no_worse(bench: Bench) -> None:
    seen: list[float] = []
    found = search(bench, [1, 2], 4, seed=0, on_trial=seen.append)
    assert found.scores == seen
    assert len(found.scores) == 4
    loads = {seed: bench.load(seed) for seed in (1, 2)}
    by_hand = sum(bench.run(DEFAULT, loads[seed], seed).score for seed in (1, 2)) / 2
    assert found.scores[0] == pytest.approx(by_hand)
    assert max(found.scores) >= found.scores[0]


def test_a_run_scores_the_share_of_bounded_requests_that_met_their_contract(bench: Bench) -> None:
    load = bench.load(1)
    score = bench.run(DEFAULT, load, 1)
    assert set(score.attainment) == {"triage", "report"}
    offered = {name: sum(r.contract_id == name for r in load.requests()) for name in score.attainment}
    met = sum(score.attainment[name] * offered[name] for name in offered)
    assert score.total == pytest.approx(met / sum(offered.values()))
    assert score.score <= score.total


def test_settings_that_leave_triage_nothing_meet_less_of_it(bench: Bench) -> None:
    reckless = Settings(
        DecayProfile(), PlannerConfig(reserve_alpha=0.0, margin_share=0.0, idle_step_share=30.0, burst_share=5.0)
    )

    def triage_met(settings: Settings) -> float:
        return sum(bench.run(settings, bench.load(seed), seed).attainment["triage"] for seed in range(6))

    assert triage_met(reckless) < triage_met(DEFAULT) - 0.1


def test_equal_settings_are_never_called_better(bench: Bench) -> None:
    verdict = judge(bench, DEFAULT, DEFAULT, [7, 8], lambda: None)
    assert verdict.difference == 0.0
    assert not verdict.is_better


def test_better_needs_the_whole_interval_above_zero() -> None:
    assert Verdict([], [], 0.1, (0.01, 0.2)).is_better
    assert not Verdict([], [], 0.1, (-0.01, 0.2)).is_better
    low, high = bootstrap_ci95([0.1, 0.2, 0.3, 0.4])
    assert 0.1 <= low < 0.25 < high <= 0.4


def test_the_written_file_is_what_the_scheduler_reads(tmp_path: Path, model: LatencyModel) -> None:
    settings = Settings(
        DecayProfile(thresholds_ms=(40.0, 90.0), rates=(3.0, 1.5, 1.0), decay_coefficient=1.1),
        PlannerConfig(reserve_alpha=0.7, loose_share=0.3),
    )
    path = tmp_path / "deep" / "slack_decay_profile.yaml"
    write_profile(path, profile_document(settings, {"simulated": True}))
    decay, section = load_decay_profile(path)
    assert Settings(decay, planner_from_mapping(section, str(path))) == settings
    policy = make_policy(model, SchedulerConfig(decay_profile_path=str(path)))
    assert isinstance(policy, SlackPolicy)
    assert (policy.decay, policy.planner) == (settings.decay, settings.planner)
    assert ("planner.loose_share", str(PlannerConfig().loose_share), "0.3") in changes(DEFAULT, settings)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"reserve": 1}, "unknown key planner.reserve; accepted: reserve_alpha"),
        ({"margin_share": -1}, "planner.margin_share: -1 is not accepted; expected a number >= 0"),
        ({"burst_share": float("nan")}, "planner.burst_share"),
        ({"loose_share": "many"}, "planner.loose_share: 'many'"),
    ],
)
def test_a_broken_planner_section_names_the_key(section: dict, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        planner_from_mapping(section, "file.yaml")
    assert said in str(caught.value)


def test_promised_share_is_the_highest_percentile() -> None:
    contract = SLOContract(service_id="a", latency=(Bound(0.5, 1.0), Bound(0.9, 2.0)), ttft=(Bound(0.95, 1.0),))
    assert promised_share(contract) == 0.95


@pytest.mark.slow
def test_the_command_writes_profile_and_picture_and_says_that_it_simulated(tmp_path: Path) -> None:
    out = tmp_path / "profile.yaml"
    scenario = tmp_path / "small.yaml"
    scenario.write_text(SCENARIO)
    arguments = ["tune", str(scenario), "--trials", "3", "--seeds", "1", "--out", str(out), "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    verdict = json.loads(result.stdout)
    assert verdict["schema"] == "superinfer.tune/1"
    assert verdict["simulated"] is True
    written = yaml.safe_load(out.read_text())
    assert written["tuned"]["held_out_difference"] == verdict["held_out_difference"]
    load_decay_profile(out)
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_cluster_is_tuned_for_by_its_topology(tmp_path: Path) -> None:
    out = tmp_path / "profile.yaml"
    arguments = ["tune", "cluster-mixed", "--topology", "h100-4x8", "--requests", "200"]
    result = CliRunner().invoke(app, [*arguments, "--trials", "2", "--seeds", "1", "--out", str(out), "--json"])
    assert result.exit_code == 0, result.output
    verdict = json.loads(result.stdout)
    assert verdict["model"] == "llama-3-70b"
    assert "H100" in verdict["device"]
    assert verdict["rate_rps"] > 10.0
    load_decay_profile(out)


@pytest.mark.parametrize(("name", "problem"), [("", "is a folder"), ("file/profile.yaml", "cannot be written")])
def test_an_output_that_cannot_be_written_is_refused_before_the_search(tmp_path, name, problem):
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, ["tune", "--out", str(tmp_path / name)])
    assert isinstance(result.exception, UsageError)
    assert problem in str(result.exception)
