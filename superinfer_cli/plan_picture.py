"""The picture of a plan: who gets which device's time, and the frontier of the margins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from superinfer.scheduler.pareto import Plan

# Okabe and Ito (2008): distinct for the colour-blind; hatches tell further contracts apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
HATCHES = ("", "//", "..", "xx")
LABEL_LIMIT = 16


def draw_plan(plan: Plan, device_ids: Sequence[str], path: Path, title: str) -> None:
    """Write a PNG with two panels."""
    figure = Figure(figsize=(15, 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    shares, frontier = figure.subplots(1, 2)
    _draw_shares(shares, plan, device_ids)
    _draw_frontier(frontier, plan)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=120)


def _draw_shares(axes: Any, plan: Plan, device_ids: Sequence[str]) -> None:
    floor = dict.fromkeys(device_ids, 0.0)
    places = range(len(device_ids))
    for number, contract in enumerate(plan.chosen.contracts):
        by_device = {share.device_id: share for share in contract.shares}
        heights = [by_device[each].time_share if each in by_device else 0.0 for each in device_ids]
        axes.bar(
            places,
            heights,
            0.8,
            bottom=list(floor.values()),
            color=COLOURS[number % len(COLOURS)],
            hatch=HATCHES[number // len(COLOURS) % len(HATCHES)],
            edgecolor="white",
            label=contract.name,
        )
        floor = {each: floor[each] + height for each, height in zip(device_ids, heights, strict=True)}
    labels = list(device_ids) if len(device_ids) <= LABEL_LIMIT else [str(place) for place in places]
    axes.set_xticks(list(places), labels, rotation=45 if len(device_ids) > 4 else 0, ha="right", fontsize=8)
    axes.set(ylim=(0, 1), ylabel="share of device time", title="Chosen allocation")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2, frameon=False)


def _draw_frontier(axes: Any, plan: Plan) -> None:
    """Each point is a line across the contracts' margins: where two lines cross, one contract gains, another loses."""
    names = [contract.name for contract in plan.chosen.contracts]
    places = range(len(names))
    for point in plan.frontier:
        if point is not plan.chosen:
            axes.plot(places, [each.margin for each in point.contracts], color="0.6", marker="o", markersize=3)
    axes.plot(
        places,
        [each.margin for each in plan.chosen.contracts],
        color=COLOURS[1],
        marker="D",
        linewidth=2.5,
        label=f"chosen: {plan.chosen.utilisation:.1%} total utilisation",
    )
    axes.axhline(1.0, color="0.2", linestyle="--", linewidth=1, label="margin 1: the bounds just hold")
    axes.set_xticks(list(places), names, rotation=20 if len(names) > 2 else 0, ha="right", fontsize=8)
    axes.set(
        ylim=(0, None),
        ylabel="margin (best effort: served share)",
        title=f"Pareto frontier, {len(plan.frontier)} points",
    )
    # Linear up to 1, where half served and all served are to be told apart, logarithmic above.
    axes.set_yscale("symlog", linthresh=1.0)
    axes.set_yticks([0.0, 0.5, 1.0, 2.0, 5.0, 10.0], minor=False)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(True, alpha=0.2)
    axes.legend(fontsize=8, frameon=False)
