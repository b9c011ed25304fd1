"""What `superinfer tune` leaves: the profile file, a table, a picture."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from rich.table import Table

from superinfer.cli.tune.evaluate import Settings
from superinfer.cli.tune.search import Search
from superinfer.cli.tune.verdict import Verdict


def profile_document(settings: Settings, tuned: dict[str, Any]) -> dict[str, Any]:
    """The content of `slack_decay_profile.yaml`; `tuned` records where the numbers come from."""
    return {**settings.decay.to_dict(), "planner": dataclasses.asdict(settings.planner), "tuned": tuned}


def write_profile(path: Path, document: dict[str, Any]) -> None:
    """Write the file in one go."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(path.suffix + ".partial")
    temporary.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), encoding="utf-8")
    temporary.replace(path)


def changes(default: Settings, best: Settings) -> list[tuple[str, str, str]]:
    """(key, default, tuned) of everything that differs."""

    def flat(settings: Settings) -> dict[str, Any]:
        return {
            **settings.decay.to_dict(),
            **{f"planner.{k}": v for k, v in dataclasses.asdict(settings.planner).items()},
        }

    before, after = flat(default), flat(best)
    return [(key, str(before[key]), str(after[key])) for key in before if before[key] != after[key]]


def verdict_table(verdict: Verdict) -> Table:
    """Held-out attainment per contract, default beside tuned."""
    table = Table(title="Held-out seeds (simulated)")
    for heading in ("contract", "default", "tuned"):
        table.add_column(heading, justify="left" if heading == "contract" else "right")
    for service in verdict.default[0].attainment:
        table.add_row(
            service,
            f"{fmean(s.attainment[service] for s in verdict.default):.3f}",
            f"{fmean(s.attainment[service] for s in verdict.tuned):.3f}",
        )
    table.add_row(
        "all", f"{fmean(s.total for s in verdict.default):.3f}", f"{fmean(s.total for s in verdict.tuned):.3f}"
    )
    return table


def draw(path: Path, search: Search, verdict: Verdict, title: str) -> None:
    """Two panels: the search's progress, and how long effective slack lasts under both profiles."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    progress, decay = figure.subplots(1, 2)
    best_so_far = [max(search.scores[: i + 1]) for i in range(len(search.scores))]
    progress.plot(search.scores, ".", color="#999999", label="trial")
    progress.plot(best_so_far, color="#0072B2", label="best so far")
    progress.axhline(search.scores[0], color="#D55E00", linestyle="--", label="default")
    progress.set(xlabel="trial", ylabel="score (total attainment − shortfall)", title="Search, simulated")
    progress.legend(frameon=False)
    reach = max(*search.best.decay.thresholds_ms, *search.default.decay.thresholds_ms) * 1.5
    slack = [reach * i / 200 for i in range(201)]
    for settings, name, colour in ((search.default, "default", "#D55E00"), (search.best, "tuned", "#0072B2")):
        decay.plot(slack, [settings.decay.time_to_zero_ms(s) for s in slack], color=colour, label=name)
    decay.set(xlabel="slack (ms)", ylabel="time until effective slack is zero (ms)", title="Decay profile")
    decay.legend(frameon=False)
    figure.suptitle(f"{title}: held-out difference {verdict.difference:+.4f}")
    figure.savefig(path, dpi=120)
