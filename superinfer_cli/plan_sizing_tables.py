"""How the size of a cluster is shown: what was tried, and what each contract got at the smallest size that holds."""

from __future__ import annotations

from rich import box
from rich.table import Table

from superinfer.cli.plan_sizing import ClusterVerdict, Sizing


def sizing_table(sizing: Sizing) -> Table:
    """One row a size that was tried, smallest first."""
    names = [contract.name for contract in sizing.tried[0].contracts]
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("devices", "copies", "batch", *(f"{name} held" for name in names), "verdict"):
        table.add_column(column, overflow="fold")
    for each in sizing.tried:
        shares = ["-" if one.attainment is None else f"{one.attainment:.1%}" for one in each.contracts]
        verdict = "holds" if each.holds else "does not hold"
        table.add_row(str(each.devices), str(each.copies), str(each.batch), *shares, verdict)
    return table


def verdict_table(verdict: ClusterVerdict) -> Table:
    """Every bound: the share of requests within it beside the share that was promised."""
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("contract", "bound", "within", "promised", "holds"):
        table.add_column(column, overflow="fold")
    for contract in verdict.contracts:
        for bound in contract.bounds:
            table.add_row(
                contract.name,
                f"{bound.milestone} {bound.bound_ms:g} ms",
                f"{bound.within:.2%}",
                f"{bound.percentile:.2%}",
                "yes" if bound.held else "no",
            )
        if not contract.bounds:
            table.add_row(contract.name, "best effort", "-", "-", "-")
    return table


def sizing_sentence(sizing: Sizing, available: int) -> str:
    """The answer in one line."""
    largest = sizing.tried[-1]
    if sizing.needed is None:
        short = [contract.name for contract in largest.contracts if not contract.holds]
        return f"simulated: not even all {available} devices hold {', '.join(short)}"
    copies = f"{sizing.needed.copies} cop{'y' if sizing.needed.copies == 1 else 'ies'} of the model"
    return (
        f"simulated: {sizing.needed.devices} of {available} devices hold all contracts ({copies}, "
        f"{sizing.tensor_parallel} device(s) each, decode batches of up to {sizing.batch})"
    )
