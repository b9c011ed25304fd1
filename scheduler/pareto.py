"""Which share of which device each contract gets, so that every bound holds and no margin is left lying.

`plan_allocation` looks for allocations in which no contract's margin can rise without another's falling, shows the
frontier that they form, and picks the one with the best total utilisation; of those that are as good within
`PlanLimits.equal_utilisation`, the one whose smallest relative margin is largest. Where not every bound can hold it
names a smallest set of contracts that cannot hold theirs together. The queueing model and its limits are in
`pareto_demand`, the program that HiGHS solves in `pareto_program`.

Each frontier point maximises an achievement function (Wierzbicki's reference points): how far some margins come
together, and with a `TRADE`-th of that weight the sum of all margins. Its optimum cannot be dominated, since a
dominating allocation would have a larger sum, and what it falls short of never makes the program infeasible, as a hard
floor at a margin that was reached before would, at the least rounding error.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from superinfer.contracts.errors import ResourceError
from superinfer.scheduler.pareto_demand import ContractDemand
from superinfer.scheduler.pareto_program import AllocationProgram, PlanLimits, Solution
from superinfer.scheduler.topology import Device

MAX_MIXED_POINTS = 10
MAX_SUBSET_SOLVES = 300
TRADE = 100.0
"""No frontier point gives up a part of the span of the margins it is about unless others gain as many times as much."""
MIN_SPAN = 1e-2
"""Margins that can rise by less are weighed as if they could rise by this much."""
TOLERANCE = 1e-6
"""Below it a share of time is none."""
# How far from their starts margins may go together, in parts of their spans.
ON, BACK = (0.0, 1.0), (-1.0, 0.0)


@dataclass(frozen=True, slots=True)
class Share:
    """What one contract gets of one device.

    `time_share` of its time, of which `spare_share` is headroom; `bandwidth_gb_per_s` while that time is used;
    `memory_gb` for KV, without the weights; `rate_per_s` of the contract's requests go there.
    """

    device_id: str
    time_share: float
    spare_share: float
    bandwidth_gb_per_s: float
    memory_gb: float
    rate_per_s: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """A bound and what is predicted for its percentile on the slowest of the contract's devices, in milliseconds.

    The milestone is latency, ttft, tpot or jitter; jitter is a standard deviation and has no percentile.
    """

    milestone: str
    percentile: float | None
    bound_ms: float
    predicted_ms: float


@dataclass(frozen=True, slots=True)
class ContractAllocation:
    """A contract's shares and what follows from them.

    `margin` is headroom over what the bounds need, at least 1 where they hold; for a best-effort contract it is
    the served share of its offered rate.
    """

    name: str
    is_best_effort: bool
    margin: float
    shares: tuple[Share, ...]
    predictions: tuple[Prediction, ...]


@dataclass(frozen=True, slots=True)
class Allocation:
    """One Pareto-optimal allocation; utilisations are shares of all devices together.

    Where `is_proven` is False the solver ran out of time: all bounds hold, but a dominating allocation may exist.
    """

    contracts: tuple[ContractAllocation, ...]
    time_utilisation: float
    bandwidth_utilisation: float
    memory_utilisation: float
    is_proven: bool

    @property
    def margins(self) -> dict[str, float]:
        """Margin by contract."""
        return {each.name: each.margin for each in self.contracts}

    @property
    def utilisation(self) -> float:
        """Total utilisation: the mean of device time and bandwidth. Memory is space, not work, and does not count."""
        return (self.time_utilisation + self.bandwidth_utilisation) / 2


@dataclass(frozen=True, slots=True)
class Plan:
    """The chosen allocation and the distinct frontier points it was chosen among."""

    chosen: Allocation
    frontier: tuple[Allocation, ...]


@dataclass(frozen=True, slots=True)
class Clash:
    """Contracts that cannot all hold on these devices, although without any one of them the others could.

    `is_smallest` says that no smaller set clashes either; with many contracts only minimality is established.
    """

    names: tuple[str, ...]
    is_smallest: bool


def plan_allocation(
    demands: Sequence[ContractDemand], devices: Mapping[str, Device], limits: PlanLimits | None = None
) -> Plan | Clash:
    """The allocation of `devices` (by id) among contracts of different names. Raises ResourceError if undecided."""
    settings = limits or PlanLimits()
    program = AllocationProgram(demands, list(devices.values()), settings)
    useful = program.solve(program.utilisation_weights())
    if useful is None:
        return clashing_contracts(demands, devices, settings)
    best = [_most(program, c, useful) for c in range(len(demands))]
    lows = [0.0 if demand.is_best_effort else 1.0 for demand in demands]
    spans = [max(high - low, MIN_SPAN) for high, low in zip(best, lows, strict=True)]
    every = dict(enumerate(useful.margins))
    points = [_reached(program, every, spans, BACK) or replace(useful, is_proven=False)]
    for c, margin in enumerate(best):
        points += filter(None, [_reached(program, {c: margin}, spans, BACK)])
    for mix in _mixes(len(demands)):
        points += filter(None, [_reached(program, {c: lows[c] for c in mix}, spans, ON)])
    frontier: list[tuple[float, Allocation]] = []
    for point in points:
        relative = [(margin - low) / span for margin, low, span in zip(point.margins, lows, spans, strict=True)]
        allocation = _allocation(program, list(devices), point)
        if not any(_same(allocation, other) for _, other in frontier):
            frontier.append((min(relative, default=0.0), allocation))
    best_use = max(allocation.utilisation for _, allocation in frontier)
    equals = [each for each in frontier if each[1].utilisation >= best_use - settings.equal_utilisation]
    chosen = max(equals, key=lambda each: each[0])[1]
    return Plan(chosen=chosen, frontier=tuple(allocation for _, allocation in frontier))


def solve_count(contracts: int) -> int:
    """How many integer programs a plan of so many contracts solves when all bounds can hold."""
    return 2 + 2 * contracts + len(_mixes(contracts))


def clashing_contracts(demands: Sequence[ContractDemand], devices: Mapping[str, Device], limits: PlanLimits) -> Clash:
    """A smallest set of contracts that cannot hold together, given that all of them cannot.

    A part of contracts that can hold together can hold, so subsets are tried by size. Where that takes too many
    solves, a deletion filter finds a set from which none can be left out.
    """
    bound = [demand for demand in demands if not demand.is_best_effort]
    every = list(devices.values())

    def holds(chosen: Sequence[ContractDemand]) -> bool:
        return AllocationProgram(chosen, every, limits).solve({}) is not None

    solves = 0
    for size in range(1, len(bound) + 1):
        solves += math.comb(len(bound), size)
        if solves > MAX_SUBSET_SOLVES:
            break
        for subset in itertools.combinations(bound, size):
            if not holds(subset):
                return Clash(tuple(each.name for each in subset), is_smallest=True)
    kept = list(bound)
    for demand in bound:
        rest = [each for each in kept if each is not demand]
        if not holds(rest):
            kept = rest
    return Clash(tuple(each.name for each in kept), is_smallest=False)


def _mixes(contracts: int) -> list[tuple[int, ...]]:
    """Whose margins a compromise balances: everybody's, then each pair's."""
    if contracts < 2:
        return []
    everybody = tuple(range(contracts))
    pairs = [pair for pair in itertools.combinations(range(contracts), 2) if pair != everybody]
    return [everybody, *pairs[: MAX_MIXED_POINTS - 1]]


def _most(program: AllocationProgram, c: int, known: Solution) -> float:
    """The largest margin of contract c that the solver finds in its time, at least that of a known solution."""
    try:
        solution = program.solve({program.margin(c): 1.0})
    except ResourceError:
        solution = None
    return max(known.margins[c], solution.margins[c] if solution else 0.0)


def _reached(
    program: AllocationProgram, starts: Mapping[int, float], spans: Sequence[float], reach: tuple[float, float]
) -> Solution | None:
    """The Pareto-optimal allocation next to some contracts' margins, which go on or back together, in parts of spans.

    None where the solver did not get there in its time.
    """
    weights = {program.margin(c): 1.0 / span for c, span in enumerate(spans)}
    rise = {c: (start, spans[c]) for c, start in starts.items()}
    try:
        return program.solve({**weights, program.together: TRADE}, rise, reach)
    except ResourceError:
        return None


def _same(first: Allocation, second: Allocation) -> bool:
    return all(
        math.isclose(a.margin, b.margin, rel_tol=1e-3, abs_tol=1e-3)
        for a, b in zip(first.contracts, second.contracts, strict=True)
    ) and math.isclose(first.utilisation, second.utilisation, abs_tol=1e-3)


def _allocation(program: AllocationProgram, device_ids: Sequence[str], solution: Solution) -> Allocation:
    contracts = []
    for c, demand in enumerate(program.demands):
        shares = []
        for d, device_id in enumerate(device_ids):
            if solution.used[c][d] and (not demand.is_best_effort or solution.work[c][d] > TOLERANCE):
                shares.append(_share(program, c, d, device_id, solution))
        contracts.append(
            ContractAllocation(
                name=demand.name,
                is_best_effort=demand.is_best_effort,
                margin=solution.margins[c],
                shares=tuple(shares),
                predictions=_predictions(program, c, solution),
            )
        )
    every = [share for contract in contracts for share in contract.shares]
    serving = len({share.device_id for share in every})
    memory_gb = serving * program.limits.weights_gb + sum(share.memory_gb for share in every)
    return Allocation(
        contracts=tuple(contracts),
        time_utilisation=sum(share.time_share for share in every) / len(device_ids),
        bandwidth_utilisation=sum(share.bandwidth_gb_per_s for share in every)
        / sum(device.bandwidth_gb_per_s for device in program.devices),
        memory_utilisation=memory_gb / sum(device.memory_gb for device in program.devices),
        is_proven=solution.is_proven,
    )


def _share(program: AllocationProgram, c: int, d: int, device_id: str, solution: Solution) -> Share:
    demand, device = program.demands[c], program.devices[d]
    work, spare = solution.work[c][d], solution.spare[c][d]
    return Share(
        device_id=device_id,
        time_share=work + spare,
        spare_share=spare,
        bandwidth_gb_per_s=(work + spare) * device.relative_compute * demand.gb_per_busy_s,
        memory_gb=program.memory_gb(c, d, work),
        rate_per_s=work * device.relative_compute / demand.work_s,
    )


def _predictions(program: AllocationProgram, c: int, solution: Solution) -> tuple[Prediction, ...]:
    demand = program.demands[c]
    served = [
        (device.relative_compute, solution.spare[c][d] * device.relative_compute)
        for d, device in enumerate(program.devices)
        if solution.used[c][d]
    ]
    predictions = [
        Prediction(
            milestone=bound.milestone,
            percentile=bound.percentile,
            bound_ms=bound.bound_s * 1e3 / bound.count,
            predicted_ms=max(demand.predicted_s(bound, speed, headroom) for speed, headroom in served)
            * 1e3
            / bound.count,
        )
        for bound in demand.bounds
    ]
    if demand.max_jitter_s is not None:
        least = min(headroom for _, headroom in served)
        predictions.append(Prediction("jitter", None, demand.max_jitter_s * 1e3, demand.work_s / least * 1e3))
    return tuple(predictions)
