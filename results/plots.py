"""Pictures of a bench: attainment with its interval, latency distributions, and a run with a fault over time.

Colours are those of Okabe and Ito (2008), distinct for the colour-blind; line styles and markers differ too.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from superinfer.results.attainment import attainment
from superinfer.results.outcome import Outcome
from superinfer.results.summary import PolicyRun

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F4F24")
LINE_STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DEADLINE_COLOUR = "#666666"

STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "figure.dpi": 120,
}


def plot_all(runs: Sequence[PolicyRun], title: str) -> dict[str, bytes]:
    """Every picture that these runs call for, as PNG bytes by file name."""
    pictures = {
        "attainment.png": attainment_plot(runs, title),
        "latency_cdf.png": latency_cdf_plot(runs, title),
    }
    if any(run.faults for run in runs):
        pictures["fault_timeline.png"] = fault_timeline_plot(runs, title)
    return pictures


def attainment_plot(runs: Sequence[PolicyRun], title: str) -> bytes:
    """Attainment by contract and policy, with 95 % intervals."""
    services = _bound_services(runs)
    groups = [*services, "all"]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(max(6.0, 2.2 * len(groups) + 1.5), 3.6), layout="constrained")
        width = 0.8 / max(len(runs), 1)
        for i, run in enumerate(runs):
            for j, service_id in enumerate(groups):
                chosen = [o for o in run.outcomes if service_id in ("all", o.service_id)]
                reached = attainment(chosen)
                if reached.share is None or reached.ci95 is None:
                    continue
                share, (low, high) = reached.share, reached.ci95
                x = j + (i - (len(runs) - 1) / 2) * width
                axes.bar(x, share, width * 0.9, color=_colour(i))
                axes.errorbar(x, share, [[share - low], [high - share]], color="#222222", capsize=3, linewidth=1)
                axes.text(x, 0.02, f"{100 * share:.0f}", ha="center", va="bottom", color="white", fontsize=8)
        axes.set_xticks(range(len(groups)), [_short(group) for group in groups])
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0))
        axes.grid(visible=False, axis="x")
        axes.set_ylabel("attainment (met ÷ offered)")
        axes.set_title(title, loc="left", fontsize=9)
        _legend(figure, [Patch(color=_colour(i), label=run.policy) for i, run in enumerate(runs)])
        return figure_png(figure)


def latency_cdf_plot(runs: Sequence[PolicyRun], title: str) -> bytes:
    """Distribution function of end-to-end latency by contract; ends below 100 % if some never completed."""
    services = list(dict.fromkeys(service_id for run in runs for service_id in run.contracts))
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(
            1,
            max(len(services), 1),
            figsize=(max(6.0, 4.2 * len(services)), 3.4),
            layout="constrained",
            squeeze=False,
        )
        for column, service_id in enumerate(services):
            axes = panels[0][column]
            deadlines = {run.contracts[service_id].deadline_ms for run in runs if service_id in run.contracts}
            for i, run in enumerate(runs):
                own = [outcome for outcome in run.outcomes if outcome.service_id == service_id]
                _step(axes, own, i)
            for deadline_ms in deadlines - {None}:
                assert deadline_ms is not None
                axes.axvline(deadline_ms / 1e3, color=DEADLINE_COLOUR, linewidth=1, linestyle=(0, (4, 3)))
                axes.annotate(
                    "deadline",
                    (deadline_ms / 1e3, 0.02),
                    xytext=(3, 0),
                    textcoords="offset points",
                    color=DEADLINE_COLOUR,
                    fontsize=8,
                )
            axes.set_ylim(0, 1.02)
            axes.set_xlim(left=0)
            axes.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0))
            axes.set_xlabel("end-to-end latency, s")
            axes.set_title(_short(service_id), loc="left", fontsize=9)
        panels[0][0].set_ylabel("share of offered requests")
        figure.suptitle(title, x=0.01, ha="left", fontsize=9)
        _legend(figure, [Line2D([], [], **_line(i), label=run.policy) for i, run in enumerate(runs)])
        return figure_png(figure)


def fault_timeline_plot(runs: Sequence[PolicyRun], title: str) -> bytes:
    """Latency of each request at its scheduled time, a panel per policy, faults and recoveries marked."""
    services = list(dict.fromkeys(service_id for run in runs for service_id in run.contracts))
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(
            len(runs),
            1,
            figsize=(7.5, 2.4 * len(runs) + 0.8),
            layout="constrained",
            squeeze=False,
            sharex=True,
        )
        for row, run in enumerate(runs):
            axes = panels[row][0]
            for j, service_id in enumerate(services):
                own = [o for o in run.outcomes if o.service_id == service_id and o.e2e_ms is not None]
                axes.scatter(
                    [o.scheduled_s for o in own],
                    [(o.e2e_ms or 0.0) / 1e3 for o in own],
                    s=12,
                    color=_colour(j),
                    marker=MARKERS[j % len(MARKERS)],
                )
                deadline_ms = run.contracts[service_id].deadline_ms if service_id in run.contracts else None
                if deadline_ms is not None:
                    axes.axhline(
                        deadline_ms / 1e3,
                        color=_colour(j),
                        linewidth=0.8,
                        linestyle=(0, (4, 3)),
                    )
            for fault in run.faults:
                until_up_s = fault.get("time_until_up_s")
                axes.axvline(fault["time_s"], color="#222222", linewidth=1.2)
                if until_up_s:
                    axes.axvspan(
                        fault["time_s"],
                        fault["time_s"] + until_up_s,
                        color="#222222",
                        alpha=0.08,
                        linewidth=0,
                    )
                axes.annotate(
                    f"{fault['kind']}, domain {fault['domain_id']}",
                    (fault["time_s"], 1),
                    xycoords=("data", "axes fraction"),
                    xytext=(3, -9),
                    textcoords="offset points",
                    fontsize=8,
                )
            axes.set_ylim(0, 1.15 * axes.get_ylim()[1])  # room for the mark of the fault
            axes.set_ylabel("latency, s")
            axes.set_title(run.policy, loc="left", fontsize=9)
        panels[-1][0].set_xlabel("scheduled send time, s (shaded: domain down; dashed: deadlines)")
        figure.suptitle(title, x=0.01, ha="left", fontsize=9)
        _legend(figure, [_dot(j, service_id) for j, service_id in enumerate(services)])
        return figure_png(figure)


def _step(axes: Axes, outcomes: Sequence[Outcome], i: int) -> None:
    """Draw one empirical distribution function; it ends below 1 where requests did not complete."""
    seconds = np.sort([outcome.e2e_ms / 1e3 for outcome in outcomes if outcome.e2e_ms is not None])
    if seconds.size == 0:
        return
    share = np.arange(seconds.size + 1) / len(outcomes)
    axes.step(np.concatenate([[0.0], seconds]), share, where="post", **_line(i))


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def _line(i: int) -> dict[str, Any]:
    return {"color": _colour(i), "linestyle": LINE_STYLES[i % len(LINE_STYLES)], "linewidth": 1.5}


def _dot(i: int, label: str) -> Line2D:
    marker = MARKERS[i % len(MARKERS)]
    return Line2D([], [], color=_colour(i), marker=marker, linestyle="none", markersize=4, label=_short(label))


def _legend(figure: Figure, handles: Sequence[Artist]) -> None:
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 5))


def _bound_services(runs: Sequence[PolicyRun]) -> list[str]:
    """Contracts with a bound, in the order of the runs."""
    return list(
        dict.fromkeys(
            service_id for run in runs for service_id, contract in run.contracts.items() if not contract.is_best_effort
        )
    )


def _short(service_id: str, limit: int = 30) -> str:
    return service_id if len(service_id) <= limit else "…" + service_id[-(limit - 1) :]


def figure_png(figure: Figure) -> bytes:
    """The figure as PNG, closed afterwards."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    plt.close(figure)
    return buffer.getvalue()
