"""The picture of a calibration: what was predicted against what then was, a row a policy."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from superinfer.results.calibration import Calibration, Predicted, error_figures
from superinfer.results.plots import COLOURS, DEADLINE_COLOUR, MARKERS, STYLE, figure_png

PANELS = ("time to first token", "time per output token", "steps")


def calibration_plot(calibrations: Sequence[tuple[str, Calibration]], title: str) -> bytes:
    """(policy, calibration) as PNG: requests by contract, steps by kind, with the errors in the heading."""
    with plt.rc_context(STYLE):
        size = (12.0, 3.8 * len(calibrations) + 0.4)
        figure, panels = plt.subplots(len(calibrations), 3, figsize=size, layout="constrained", squeeze=False)
        for row, (policy, calibration) in enumerate(calibrations):
            pairs = (calibration.ttft, calibration.tpot, calibration.steps)
            for column, (name, own) in enumerate(zip(PANELS, pairs, strict=True)):
                _draw(panels[row][column], f"{policy}: {name}", own)
        for axes in panels[-1]:
            axes.set_xlabel("real, ms")
        for row_panels in panels:
            row_panels[0].set_ylabel("predicted, ms")
        figure.suptitle(title, x=0.01, ha="left", fontsize=9)
        return figure_png(figure)


def _draw(axes: Axes, name: str, pairs: Sequence[Predicted]) -> None:
    shown = [each for each in pairs if each.real_ms > 0.0 and each.predicted_ms > 0.0]
    figures = error_figures(shown)
    axes.set_title(name, loc="left", fontsize=9)
    if figures is None:
        return
    axes.set_title(
        f"{name}\nerror {100 * figures['mean_error']:.1f} % mean, {100 * figures['median_error']:.1f} % median",
        loc="left",
        fontsize=9,
    )
    ends = [figure for each in shown for figure in (each.real_ms, each.predicted_ms)]
    low, high = 0.8 * min(ends), 1.25 * max(ends)
    axes.plot([low, high], [low, high], color=DEADLINE_COLOUR, linewidth=1, zorder=1)
    axes.fill_between([low, high], [0.9 * low, 0.9 * high], [1.1 * low, 1.1 * high], color="#dddddd", zorder=0)
    for number, of in enumerate(sorted({each.of for each in shown})):
        own = [each for each in shown if each.of == of]
        axes.scatter(
            [each.real_ms for each in own],
            [each.predicted_ms for each in own],
            s=9,
            alpha=0.5,
            linewidths=0,
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
            label=of if len(of) <= 30 else "…" + of[-29:],
        )
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.legend(loc="upper left", fontsize=8)
