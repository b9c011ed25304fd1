"""The search: Optuna's TPE sampler over decay profile and planner, scored on the training seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

import optuna

from superinfer.cli.tune.evaluate import Bench, Settings
from superinfer.scheduler.decay import DecayProfile
from superinfer.scheduler.policies.planner_config import PlannerConfig


@dataclass(frozen=True, slots=True)
class Search:
    """Scores of all trials in order (the default is the first), and the best settings found."""

    scores: list[float]
    best: Settings
    default: Settings


def search(bench: Bench, seeds: list[int], trials: int, *, seed: int, on_trial: Callable[[float], None]) -> Search:
    """Run `trials` trials, the default settings among them; each is the mean score over the seeds.

    Thresholds are multiples of the tightest bound, so that one search space fits contracts of any length.
    """
    default = Settings(DecayProfile(), PlannerConfig())
    loads = {s: bench.load(s) for s in seeds}
    bounds = [c.deadline_ms or c.ttft_deadline_ms for c in bench.contracts.values()]
    tightest_ms = min((bound for bound in bounds if bound is not None), default=1000.0)
    tried: list[Settings] = []

    def objective(trial: optuna.Trial) -> float:
        settings = default if trial.number == 0 else suggest(trial, tightest_ms)
        tried.append(settings)
        score = fmean(bench.run(settings, loads[s], s).score for s in seeds)
        on_trial(score)
        return score

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(objective, n_trials=trials)
    scores = [trial.value for trial in study.trials if trial.value is not None]
    return Search(scores, tried[study.best_trial.number], default)


def suggest(trial: optuna.Trial, tightest_ms: float) -> Settings:
    """One point of the search space."""
    low = trial.suggest_float("threshold_low", 0.02, 0.2) * tightest_ms
    high = low * trial.suggest_float("threshold_ratio", 1.2, 4.0)
    decay = DecayProfile(
        thresholds_ms=(round(low, 1), round(high, 1)),
        rates=(
            round(trial.suggest_float("rate_low", 1.0, 4.0), 3),
            round(trial.suggest_float("rate_middle", 0.8, 2.0), 3),
            1.0,
        ),
        high_risk_threshold_ms=round(trial.suggest_float("high_risk", 0.01, 0.2) * tightest_ms, 1),
        decay_coefficient=round(trial.suggest_float("decay_coefficient", 0.5, 3.0), 3),
    )
    planner = PlannerConfig(
        reserve_alpha=round(trial.suggest_float("reserve_alpha", 0.2, 3.0), 3),
        margin_share=round(trial.suggest_float("margin_share", 0.0, 0.1), 4),
        loose_share=round(trial.suggest_float("loose_share", 0.05, 0.5), 3),
        idle_step_share=round(trial.suggest_float("idle_step_share", 0.05, 1.0), 3),
        burst_share=round(trial.suggest_float("burst_share", 0.0, 0.8), 3),
    )
    return Settings(decay, planner)
