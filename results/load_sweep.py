"""Attainment against load: one picture and one table over many runs of one scenario."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from superinfer.results.plots import COLOURS, LINE_STYLES, MARKERS, STYLE, figure_png

BOUND = "clairvoyant bound"
ALL = "all"


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One policy at one load: medians over the seeds. `attainment` is by service id, and `ALL`; for the bound too."""

    policy: str
    load: float
    seeds: int
    attainment: Mapping[str, float]
    goodput_rps: float | None
    output_tokens_per_s: float | None

    @property
    def services(self) -> list[str]:
        """Services with a promise, and `ALL` last."""
        return list(self.attainment)


def sweep_points(summaries: Iterable[Mapping[str, Any]]) -> list[SweepPoint]:
    """Points by policy, in order of load, the bound's last; runs that differ in their seed alone become one point."""
    groups: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for summary in summaries:
        load = float(summary["load"])
        for run in summary["runs"]:
            by_service = {
                service_id: figures["attainment"]
                for service_id, figures in run["contracts"].items()
                if figures["attainment"] is not None
            }
            groups.setdefault((run["policy"], load), []).append(
                {
                    "attainment": {**by_service, ALL: run["attainment"]},
                    "goodput_rps": run["goodput_rps"],
                    "output_tokens_per_s": run["output_tokens_per_s"],
                }
            )
        bound = summary.get("clairvoyant_bound")
        if bound is not None:
            figures = {"attainment": {**bound["contracts"], ALL: bound["attainment"]}}
            groups.setdefault((BOUND, load), []).append(figures)
    order = {policy: i for i, policy in enumerate(dict.fromkeys(policy for policy, _ in groups if policy != BOUND))}
    order[BOUND] = len(order)
    return [_point(*key, groups[key]) for key in sorted(groups, key=lambda key: (order[key[0]], key[1]))]


def sweep_plot(points: Sequence[SweepPoint], title: str) -> bytes:
    """PNG: attainment against load, a panel for all requests and one for each service, a line for each policy."""
    panels = [ALL, *(service for service in points[0].services if service != ALL)]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, len(panels), figsize=(3.6 * len(panels), 3.4), sharey=True, squeeze=False)
        for panel, service in zip(axes[0], panels, strict=True):
            _draw(panel, points, service)
        axes[0][0].set_ylabel("attainment")
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.suptitle(title)
        figure.legend(handles, labels, loc="lower center", ncols=len(labels))
        figure.tight_layout(rect=(0, 0.08, 1, 1))
        return figure_png(figure)


def sweep_table(points: Sequence[SweepPoint]) -> str:
    """The points as a Markdown table, with each policy's share of the bound."""
    services = points[0].services
    bounds = {point.load: point.attainment[ALL] for point in points if point.policy == BOUND}
    lines = [
        f"| policy | load | {' | '.join(services)} | share of bound | goodput, req/s | output tokens/s |",
        f"| --- | --- | {' | '.join('---' for _ in services)} | --- | --- | --- |",
    ]
    for point in points:
        cells = [f"{100 * point.attainment[service]:.1f} %" for service in services]
        bound = bounds.get(point.load) if point.policy != BOUND else None
        cells.append("–" if not bound else f"{100 * point.attainment[ALL] / bound:.1f} %")
        cells.append("–" if point.goodput_rps is None else f"{point.goodput_rps:.2f}")
        cells.append("–" if point.output_tokens_per_s is None else f"{point.output_tokens_per_s:.1f}")
        lines.append(f"| {point.policy} | {point.load:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _point(policy: str, load: float, runs: Sequence[Mapping[str, Any]]) -> SweepPoint:
    def middle(key: str) -> float | None:
        values = [run[key] for run in runs if run.get(key) is not None]
        return median(values) if values else None

    services = runs[0]["attainment"]
    return SweepPoint(
        policy=policy,
        load=load,
        seeds=len(runs),
        attainment={service: median(run["attainment"][service] for run in runs) for service in services},
        goodput_rps=middle("goodput_rps"),
        output_tokens_per_s=middle("output_tokens_per_s"),
    )


def _draw(axes: Axes, points: Sequence[SweepPoint], service: str) -> None:
    for i, policy in enumerate(dict.fromkeys(point.policy for point in points)):
        own = [point for point in points if point.policy == policy]
        look: dict[str, Any] = (
            {"color": "#666666", "linestyle": ":", "marker": ""}
            if policy == BOUND
            else {
                "color": COLOURS[i % len(COLOURS)],
                "linestyle": LINE_STYLES[i % len(LINE_STYLES)],
                "marker": MARKERS[i % len(MARKERS)],
                "markersize": 4,
            }
        )
        axes.plot([p.load for p in own], [p.attainment[service] for p in own], label=policy, **look)
    axes.set_title(service if service == ALL else service[:30])
    axes.set_xlabel("offered load, share of capacity")
    axes.set_ylim(0, 1.03)
