"""The mixed-integer program of the Pareto optimizer, solved by HiGHS through SciPy.

For each contract c and device d: `used` (0 or 1: a replica of c on d), `served` (share of c's stream that goes to d)
and `level` (c's headroom on d over what its bounds need there). For each contract its *margin*, the level on every
device that it uses, so the bounds hold exactly where the margin is at least 1. The margin of a best-effort contract is
the served share of what it offers, and may be 0. For each device `loaded`: it holds the model's weights.

HiGHS holds rows to an absolute tolerance. Shares and levels are its variables, and capacities are counted as parts of
the whole, because then a row's violation is as small a part of what the row is about. In device seconds, what a light
contract needs could be below the tolerance itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from superinfer.contracts.errors import ResourceError
from superinfer.scheduler.pareto_demand import ContractDemand
from superinfer.scheduler.topology import Device

OPTIMAL, INFEASIBLE = 0, 2


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """Settings of the optimizer.

    Margins above `max_margin` count no more, so that what they would take goes to others. `bandwidth_share` of a
    device's bandwidth may be planned with; `weights_gb` is held by each device that serves; total utilisations that
    differ by `equal_utilisation` or less count as equal, since the model is no finer; `solve_s` is the time after
    which a single solve is given up.
    """

    weights_gb: float = 0.0
    max_margin: float = 10.0
    bandwidth_share: float = 0.9
    equal_utilisation: float = 0.01
    solve_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Solution:
    """`margins` by contract; by (contract, device) whether it is `used`, and the shares of the device's time that serve
    the contract's stream (`work`) and are its headroom (`spare`).

    `is_proven` is False where HiGHS ran out of time with this as its best: it holds all bounds, but better may exist.
    """

    margins: tuple[float, ...]
    used: tuple[tuple[bool, ...], ...]
    work: tuple[tuple[float, ...], ...]
    spare: tuple[tuple[float, ...], ...]
    is_proven: bool


@dataclass(slots=True)
class _Rows:
    """Constraints low ≤ row · x ≤ high, collected term by term."""

    row: list[int] = field(default_factory=list)
    column: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def add(self, terms: Sequence[tuple[int, float]], low: float, high: float) -> None:
        for column, value in terms:
            self.row.append(len(self.low))
            self.column.append(column)
            self.value.append(value)
        self.low.append(low)
        self.high.append(high)

    def constraint(self, columns: int) -> Any:
        """All rows as SciPy takes them."""
        matrix = csr_array((self.value, (self.row, self.column)), shape=(len(self.low), columns))
        return LinearConstraint(matrix, self.low, self.high)


class AllocationProgram:
    """The program of some contracts on some devices; `objective` arguments are weights by column, to be maximised."""

    def __init__(self, demands: Sequence[ContractDemand], devices: Sequence[Device], limits: PlanLimits) -> None:
        self.demands, self.devices, self.limits = demands, devices, limits
        self._contracts, self._count = len(demands), len(devices)
        pairs = self._contracts * self._count
        self.columns = 3 * pairs + self._contracts + self._count + 1
        self._lower = np.zeros(self.columns)
        self._upper = np.ones(self.columns)
        self._integral = np.zeros(self.columns)
        self._integral[:pairs] = 1
        self._rows = _Rows()
        for c, demand in enumerate(demands):
            self._add_contract(c, demand)
        for d, device in enumerate(devices):
            self._add_device(d, device)
        self._constraints = [self._rows.constraint(self.columns)]

    def used(self, c: int, d: int) -> int:
        """Column: contract c has a replica on device d."""
        return c * self._count + d

    def served(self, c: int, d: int) -> int:
        """Column: share of c's stream that goes to d."""
        return self._contracts * self._count + self.used(c, d)

    def level(self, c: int, d: int) -> int:
        """Column: c's headroom on d over what its bounds need there."""
        return 2 * self._contracts * self._count + self.used(c, d)

    def margin(self, c: int) -> int:
        """Column: c's margin."""
        return 3 * self._contracts * self._count + c

    def loaded(self, d: int) -> int:
        """Column: d holds the weights."""
        return 3 * self._contracts * self._count + self._contracts + d

    @property
    def together(self) -> int:
        """Column: how far the contracts of a `rise` have all come. Free where no rise is given."""
        return self.columns - 1

    def solve(
        self,
        objective: Mapping[int, float],
        rise: Mapping[int, tuple[float, float]] | None = None,
        reach: tuple[float, float] = (0.0, 1.0),
    ) -> Solution | None:
        """Maximise the objective; None where nothing is feasible.

        `rise` gives (start, span) by contract: its margin is at least start + span · `together`, a column that may
        take values within `reach`.
        Raises ResourceError where HiGHS has found neither a solution nor a proof within its time.
        """
        lower, upper = self._lower.copy(), self._upper.copy()
        lower[self.together], upper[self.together] = reach
        constraints = list(self._constraints)
        if rise:
            rows = _Rows()
            for c, (start, span) in rise.items():
                rows.add([(self.margin(c), 1.0), (self.together, -span)], start, math.inf)
            constraints.append(rows.constraint(self.columns))
        result = self._milp(objective, constraints, lower, upper, self._integral)
        if result.x is None:
            # Every variable is bounded, so "unbounded or infeasible" means the latter.
            if result.status == INFEASIBLE or "infeasible" in str(result.message).lower():
                return None
            raise ResourceError(
                f"the allocation of {self._contracts} contracts on {self._count} devices was not decided within "
                f"{self.limits.solve_s:g} s; give it more time, or plan fewer devices or contracts at once"
            )
        # Placement settled, solve again as a linear program: no integer within a tolerance of 0 or 1 blurs the shares.
        pairs = self._contracts * self._count
        placed = np.round(result.x[:pairs])
        lower[:pairs] = upper[:pairs] = placed
        exact = self._milp(objective, constraints, lower, upper, np.zeros(self.columns))
        return self._solution(exact.x if exact.x is not None else result.x, is_proven=result.status == OPTIMAL)

    def utilisation_weights(self) -> dict[int, float]:
        """Objective: device time and bandwidth in use as a share of what there is, the mean of both."""
        total_bandwidth = sum(device.bandwidth_gb_per_s for device in self.devices)
        weights = {}
        for c, demand in enumerate(self.demands):
            for d, device in enumerate(self.devices):
                bandwidth = demand.gb_per_busy_s * device.relative_compute / total_bandwidth
                for column, time_share in self._time_terms(c, d):
                    weights[column] = time_share * (0.5 / self._count + 0.5 * bandwidth)
        return weights

    def _milp(self, objective: Mapping[int, float], constraints: Any, lower: Any, upper: Any, integral: Any) -> Any:
        cost = np.zeros(self.columns)
        for column, weight in objective.items():
            cost[column] = -weight
        options = {"time_limit": self.limits.solve_s, "mip_rel_gap": 1e-7}
        return milp(cost, constraints=constraints, bounds=Bounds(lower, upper), integrality=integral, options=options)

    def _add_contract(self, c: int, demand: ContractDemand) -> None:
        add, infinity = self._rows.add, math.inf
        served = [(self.served(c, d), 1.0) for d in range(self._count)]
        margin = self.margin(c)
        if demand.is_best_effort:
            add([*served, (margin, -1.0)], 0.0, 0.0)
        else:
            add(served, 1.0, 1.0)
            add([(self.used(c, d), 1.0) for d in range(self._count)], demand.min_devices, infinity)
            self._lower[margin] = 1.0
            self._upper[margin] = max(self.limits.max_margin, 1.0)
        highest = float(self._upper[margin])
        for d in range(self._count):
            used, level = self.used(c, d), self.level(c, d)
            add([(self.served(c, d), 1.0), (used, -min(1.0 / self._load(c, d), 1.0))], -infinity, 0.0)
            add([(used, 1.0), (self.loaded(d), -1.0)], -infinity, 0.0)
            need = self._need(c, d)
            if demand.is_best_effort:
                self._upper[level] = 0.0
                continue
            if need >= 1.0:  # not even the whole device would hold the bounds
                self._upper[used] = self._upper[level] = 0.0
                continue
            self._upper[level] = min(highest, 1.0 / need)
            add([(level, 1.0), (margin, -1.0), (used, -highest)], -highest, infinity)
            add([(level, 1.0), (margin, -1.0)], -infinity, 0.0)
            add([(level, 1.0), (used, -float(self._upper[level]))], -infinity, 0.0)

    def _load(self, c: int, d: int) -> float:
        """Share of d's time that c's whole stream would take."""
        demand = self.demands[c]
        return demand.rate_per_s * demand.work_s / self.devices[d].relative_compute

    def _need(self, c: int, d: int) -> float:
        """Share of d's time that c's bounds need as headroom."""
        speed = self.devices[d].relative_compute
        return self.demands[c].headroom(speed) / speed

    def _time_terms(self, c: int, d: int) -> list[tuple[int, float]]:
        """What c takes of d's time, as terms of columns."""
        need = self._need(c, d)
        return [(self.served(c, d), self._load(c, d)), (self.level(c, d), need if need < 1.0 else 0.0)]

    def _add_device(self, d: int, device: Device) -> None:
        time, bandwidth = [], []
        memory = [(self.loaded(d), self.limits.weights_gb / device.memory_gb)]
        for c, demand in enumerate(self.demands):
            busy = demand.gb_per_busy_s * device.relative_compute / device.bandwidth_gb_per_s
            terms = self._time_terms(c, d)
            time += terms
            bandwidth += [(column, share * busy) for column, share in terms]
            memory += [(column, gb / device.memory_gb) for column, gb in self._memory_terms(c, d, device)]
        self._rows.add(time, -math.inf, 1.0)
        self._rows.add(bandwidth, -math.inf, self.limits.bandwidth_share)
        self._rows.add(memory, -math.inf, 1.0)

    def _memory_terms(self, c: int, d: int, device: Device) -> list[tuple[int, float]]:
        """KV of the requests in flight by Little's law, and on each device what the contract wants set aside there.

        At the least the KV of one request more is set aside, since Little's law gives a mean.
        """
        demand = self.demands[c]
        if math.isinf(demand.headroom(device.relative_compute)):
            return []
        live = demand.rate_per_s * demand.residence_s(device.relative_compute)
        aside = max(demand.reserved_memory_gb, demand.request_memory_gb)
        return [(self.served(c, d), live * demand.request_memory_gb), (self.used(c, d), aside)]

    def memory_gb(self, c: int, d: int, work: float) -> float:
        """What contract c takes of d's memory beside the weights when `work` of d's time serves its stream."""
        terms = dict(self._memory_terms(c, d, self.devices[d]))
        return terms.get(self.served(c, d), 0.0) * work / self._load(c, d) + terms.get(self.used(c, d), 0.0)

    def _solution(self, x: Any, *, is_proven: bool) -> Solution:
        pairs = [[(c, d) for d in range(self._count)] for c in range(self._contracts)]
        return Solution(
            margins=tuple(float(x[self.margin(c)]) for c in range(self._contracts)),
            used=tuple(tuple(float(x[self.used(c, d)]) > 0.5 for c, d in row) for row in pairs),
            work=tuple(tuple(float(x[self.served(c, d)]) * self._load(c, d) for c, d in row) for row in pairs),
            spare=tuple(tuple(self._spare(x, c, d) for c, d in row) for row in pairs),
            is_proven=is_proven,
        )

    def _spare(self, x: Any, c: int, d: int) -> float:
        _, (level, need) = self._time_terms(c, d)
        return float(x[level]) * need
