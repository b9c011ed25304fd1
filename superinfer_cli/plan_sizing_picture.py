"""The picture of a sizing: the share of requests that held their contract, by the devices that were simulated."""

from __future__ import annotations

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from superinfer.cli.plan_picture import COLOURS
from superinfer.cli.plan_sizing import Sizing


def draw_sizing(sizing: Sizing, path: Path, title: str) -> None:
    """Write a PNG: the share of requests that held their contract, by devices."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    devices = [each.devices for each in sizing.tried]
    for number, contract in enumerate(sizing.tried[0].contracts):
        shares = [each.contracts[number].attainment for each in sizing.tried]
        if None not in shares:
            axes.plot(devices, shares, marker="o", color=COLOURS[number % len(COLOURS)], label=contract.name)
    if sizing.needed is not None:
        axes.axvline(sizing.needed.devices, color="0.5", linestyle="--", label="smallest that holds")
    axes.set(xlabel="devices", ylabel="requests that held their contract", ylim=(0, 1.02))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(True, alpha=0.2)
    axes.legend(fontsize=8)
    figure.suptitle(f"{title}\nsimulated, step times predicted from data sheets", fontsize=10)
    figure.savefig(path, dpi=120)
