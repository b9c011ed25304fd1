"""What a bench says on stderr before and between its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from superinfer.cli.bench.scenario import Scenario
from superinfer.cli.console import err
from superinfer.cli.serve.preparation import note_unserved
from superinfer.contracts.contract import SLOContract
from superinfer.results.summary import PolicyRun
from superinfer.scheduler.domain_kind import DomainKind


def announce(
    scenario: Scenario,
    contracts: Mapping[str, SLOContract],
    policies: Sequence[str],
    *,
    requests: int,
    sending_s: float,
    rate_rps: float,
    capacity_rps: float,
    simulated: bool = False,
    kinds: Sequence[DomainKind] = (),
) -> None:
    """The load in one line, the bounds of each contract, and a note for each that permits none of `kinds`."""
    err.print(
        f"{scenario.name}: {requests} requests at {rate_rps:.2f}/s, "
        f"{rate_rps / capacity_rps:.0%} of the capacity of {capacity_rps:.2f}/s, "
        f"{scenario.domains} domain(s); {sending_s:.0f} s of sending for each of {', '.join(policies)}"
        f"{' · SIMULATED' if simulated else ''}",
        highlight=False,
        soft_wrap=True,
    )
    for contract in contracts.values():
        err.print(f"  {contract.service_id}: {bounds_text(contract)}", highlight=False, soft_wrap=True)
    note_unserved(contracts.values(), kinds)


def note_run(run: PolicyRun) -> None:
    """How one policy's run ended."""
    met = sum(outcome.status == "met" for outcome in run.outcomes)
    ended = "interrupted" if run.interrupted else "done"
    err.print(
        f"{run.policy}: {ended} after {run.duration_s:.0f} s, {met} of {len(run.outcomes)} met",
        highlight=False,
    )


def bounds_text(contract: SLOContract) -> str:
    """A contract's bounds for people."""
    bounds = (
        ("end to end", contract.deadline_ms),
        ("first token", contract.ttft_deadline_ms),
        ("per token", contract.tpot_deadline_ms),
    )
    return ", ".join(f"{name} ≤ {value:,.0f} ms" for name, value in bounds if value is not None) or "best effort"
