"""Slack, rank and allowance of many sequences within one plan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.columns import FloatArray, IntArray
from superinfer.scheduler.policies.allowance import Allowance, Reserve
from superinfer.scheduler.policies.slack_kernels import allowance_s, rank_rows
from superinfer.scheduler.step_builder import StepBuilder

Costs = tuple[FloatArray, FloatArray]


@dataclass(frozen=True, slots=True, eq=False)
class Ranked:
    """Rows in order with the slack of each at the time of planning."""

    rows: IntArray
    slacks_s: FloatArray

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, positions: IntArray) -> Ranked:
        """Those at these positions, in that order."""
        return Ranked(self.rows[positions], self.slacks_s[positions])


class PlanTimes:
    """Slack and allowance at one moment, under the model as it is then. `costs` are the model's columns, `decay` a
    profile's.
    """

    __slots__ = ("_builder", "_constants", "_correction", "_decay", "_points", "_upper_ratio")

    def __init__(self, builder: StepBuilder, model: LatencyModel, costs: Costs, decay: FloatArray) -> None:
        self._builder = builder
        self._constants, self._points = costs
        self._correction = model.correction
        self._upper_ratio = model.upper_ratio
        self._decay = decay

    def ranked(self, rows: IntArray) -> tuple[Ranked, Ranked]:
        """Those that can make it, highest risk first, and the lost ones by arrival; notes who is lost."""
        table = self._builder.table
        ranked, slacks = np.empty(len(rows), np.int64), np.empty(len(rows), np.float64)
        live = rank_rows(
            table.counts,
            table.times,
            rows,
            self._constants,
            self._points,
            self._correction,
            self._builder.now,
            self._decay,
            ranked,
            slacks,
        )
        return Ranked(ranked[:live], slacks[:live]), Ranked(ranked[live:], slacks[live:])

    def allowance(self, rows: IntArray, reserve: Reserve) -> Allowance:
        """What all of them can bear as they are now."""
        if not len(rows):
            return Allowance()
        table, now = self._builder.table, self._builder.now
        even_s, whole_s = allowance_s(
            table.counts,
            table.times,
            rows,
            self._constants,
            self._points,
            self._correction,
            now,
            self._decay,
            reserve.share,
            reserve.margin_s,
            self._upper_ratio,
        )
        return Allowance(even_s, whole_s)
