"""Contracts as objectives for monitoring: at each percentile the share of requests that must hold its bounds."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from superinfer.contracts.contract import SLOContract

FULFILLMENT_METRIC = "superinfer_slo_fulfillment_rate"
"""Share of the requests of `contract_id` that hold all bounds at `quantile`, as the server's /metrics tells it."""

WINDOW = "30d"
"""Rolling window over which the share counts."""

MAX_NAME_LENGTH = 63
_NAME = re.compile("[a-z0-9]([a-z0-9-]*[a-z0-9])?")


@dataclass(frozen=True)
class Objective:
    """`percentile` of the requests that name `contract_id` hold all of `bounds` (milestone, ms)."""

    service_id: str
    contract_id: str
    description: str
    percentile: float
    bounds: tuple[tuple[str, float], ...]

    @property
    def percent(self) -> float:
        """99.9 for the percentile 0.999."""
        return round(100 * self.percentile, 6)

    @property
    def label(self) -> str:
        """p999 for the percentile 0.999, as in contract files."""
        return "p" + f"{self.percent:g}".replace(".", "")

    @property
    def text(self) -> str:
        """For people: what is promised."""
        bounds = ", ".join(f"{milestone} at most {bound_ms:g} ms" for milestone, bound_ms in self.bounds)
        return f"{self.percent:g} % of the requests of {self.contract_id}: {bounds}"

    @property
    def series(self) -> str:
        """The PromQL selector of the share that holds."""
        return f'{FULFILLMENT_METRIC}{{contract_id="{self.contract_id}",quantile="{self.percentile:g}"}}'


def objectives(contract: SLOContract) -> Iterator[Objective]:
    """One for each percentile that a service bounds, then those of its sub-tasks; none for best effort."""
    parts = {contract.service_id: contract}
    parts |= {f"{contract.service_id}/{name}": sub for name, sub in contract.sub_slos.items()}
    for contract_id, part in parts.items():
        milestones = (("latency", part.latency), ("ttft", part.ttft), ("tpot", part.tpot))
        for percentile in sorted({bound.percentile for _, bounds in milestones for bound in bounds}):
            held = [
                (milestone, bound.bound_ms)
                for milestone, bounds in milestones
                for bound in bounds
                if bound.percentile == percentile
            ]
            yield Objective(contract.service_id, contract_id, part.description, percentile, tuple(held))


def not_exported(contract: SLOContract) -> list[str]:
    """What a contract promises that no share of requests can stand for, by contract id."""
    parts = {contract.service_id: contract}
    parts |= {f"{contract.service_id}/{name}": sub for name, sub in contract.sub_slos.items()}
    return [
        f"{contract_id}: {term}"
        for contract_id, part in parts.items()
        for term, value in (("availability", part.availability), ("max_jitter_ms", part.max_jitter_ms))
        if value is not None
    ]


def object_name(contract_id: str, suffix: str = "") -> str:
    """An RFC 1123 label for an id, with `suffix`; an id that is none by itself is told apart by a digest."""
    room = MAX_NAME_LENGTH - len(suffix)
    if len(contract_id) <= room and _NAME.fullmatch(contract_id):
        return contract_id + suffix
    digest = hashlib.sha256(contract_id.encode()).hexdigest()[:8]
    readable = re.sub("[^a-z0-9]+", "-", contract_id).strip("-")[: room - len(digest) - 1].strip("-")
    return "-".join(filter(None, (readable, digest))) + suffix
