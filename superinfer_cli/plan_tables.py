"""The tables of `superinfer contracts plan`: what each contract is predicted to get, where, and the frontier."""

from __future__ import annotations

from rich import box
from rich.table import Table

from superinfer.scheduler.pareto import Allocation, ContractAllocation, Plan, Prediction

NOT_PROVEN = "*"


def contract_table(allocation: Allocation) -> Table:
    """One row a contract: each prediction beside its bound, the margin, what it gets of all devices together."""
    table = _table("", "contract", "predicted of bound, ms", "margin", "devices", "time", "GB/s", "KV GB")
    for number, each in enumerate(allocation.contracts, 1):
        table.add_row(
            str(number),
            each.name,
            "\n".join(_prediction(one) for one in each.predictions) or "best effort",
            _margin(each),
            str(len(each.shares)),
            f"{sum(share.time_share for share in each.shares):.2f}",
            f"{sum(share.bandwidth_gb_per_s for share in each.shares):.0f}",
            f"{sum(share.memory_gb for share in each.shares):.2g}",
        )
    return table


def device_table(allocation: Allocation) -> Table:
    """One row a device in use: the share of its time that each contract, by its number, gets."""
    numbers = {each.name: str(number) for number, each in enumerate(allocation.contracts, 1)}
    table = _table("device time", *numbers.values(), "in all")
    used: dict[str, dict[str, float]] = {}
    for each in allocation.contracts:
        for share in each.shares:
            used.setdefault(share.device_id, {})[each.name] = share.time_share
    for device_id, row in sorted(used.items()):
        cells = [f"{row[name]:.1%}" if name in row else "-" for name in numbers]
        table.add_row(device_id, *cells, f"{sum(row.values()):.1%}")
    return table


def frontier_table(plan: Plan) -> Table:
    """One row a frontier point, best utilised first: every contract's margin; the chosen one is marked."""
    numbers = [str(number) for number, _ in enumerate(plan.chosen.contracts, 1)]
    table = _table("frontier", *(f"margin {number}" for number in numbers), "time", "bandwidth", "total")
    for point in sorted(plan.frontier, key=lambda each: (each is not plan.chosen, -each.utilisation)):
        table.add_row(
            ("chosen" if point is plan.chosen else "") + ("" if point.is_proven else NOT_PROVEN),
            *(_margin(each) for each in point.contracts),
            f"{point.time_utilisation:.1%}",
            f"{point.bandwidth_utilisation:.1%}",
            f"{point.utilisation:.1%}",
        )
    return table


def _prediction(one: Prediction) -> str:
    label = one.milestone if one.percentile is None else f"{one.milestone} p{f'{one.percentile:g}'[2:]:0<2}"
    return f"{label} {one.predicted_ms:.4g} of {one.bound_ms:g}"


def _margin(each: ContractAllocation) -> str:
    return f"{each.margin:.0%}" if each.is_best_effort else f"{each.margin:.2f}"


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
