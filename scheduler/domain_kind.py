"""Domains of one kind: as many devices of the same sort in the same precision, so one latency model and one set of
limits.

A scheduler without kinds takes all its domains for equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from superinfer.contracts.contract import SLOContract
from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.config import DomainSpec, SchedulerConfig
from superinfer.scheduler.fault_map import DomainAssignment

TYPICAL_PROMPT, TYPICAL_OUTPUTS = 512, 64
"""Tokens of the request by which kinds are compared."""


def speed_rank(model: LatencyModel) -> float:
    """The smaller, the faster: what a typical request takes alone."""
    return model.unloaded_s(TYPICAL_PROMPT, TYPICAL_OUTPUTS)


@dataclass(frozen=True, slots=True, eq=False)
class DomainKind:
    """One kind, which each DomainSpec names by `kind_id`; limits that are None are those of the scheduler's config.

    `devices` hold one copy of the model together. Domains with the same `kv_layout` can read each other's KV blocks
    where their memory is shared at all; what was computed elsewhere is computed anew.
    """

    kind_id: str
    latency_model: LatencyModel
    max_running: int | None = None
    max_step_tokens: int | None = None
    host_blocks: int | None = None
    device_type: str = ""
    devices: int = 1
    memory_per_device_mb: float | None = None
    precision: str = ""
    loses_precision: bool = False
    kv_layout: str = ""

    def permits(self, contract: SLOContract) -> bool:
        """Whether a contract may be served here at all: its precision, and the devices that it asks for."""
        resources = contract.resources
        if self.loses_precision and not contract.precision_loss_allowed:
            return False
        wanted_mb, has_mb = resources.memory_per_gpu_mb, self.memory_per_device_mb
        if wanted_mb is not None and has_mb is not None and has_mb < wanted_mb:
            return False
        return self.devices >= resources.min_gpu_count

    def limits(self, config: SchedulerConfig) -> SchedulerConfig:
        """The scheduler's config with this kind's own limits."""
        own = {name: getattr(self, name) for name in ("max_running", "max_step_tokens", "host_blocks")}
        return msgspec.structs.replace(config, **{name: value for name, value in own.items() if value is not None})


class DomainKinds:
    """The kinds of a scheduler's domains, fastest first, and which domains of each may start a contract's requests."""

    def __init__(self, kinds: Iterable[DomainKind], assignment: DomainAssignment) -> None:
        self.kinds = sorted(kinds, key=lambda kind: speed_rank(kind.latency_model))
        self._numbers = {kind.kind_id: number for number, kind in enumerate(self.kinds)}
        self._assignment = assignment
        self._number_of: dict[str, int] = {}
        self._serving: dict[str, list[list[str]]] = {}
        self.most_blocks = [0] * len(self.kinds)
        """KV blocks of the largest domain of each kind."""

    def add(self, spec: DomainSpec) -> None:
        """A domain is up. ValueError where its kind is not one of these."""
        if spec.kind not in self._numbers:
            raise ValueError(f"domain {spec.domain_id}: kind {spec.kind!r} is not one of {', '.join(self._numbers)}")
        number = self._number_of[spec.domain_id] = self._numbers[spec.kind]
        self.most_blocks[number] = max(self.most_blocks[number], spec.kv_blocks)

    def number_of(self, domain_id: str) -> int:
        """The number of a domain's kind; the smaller, the faster."""
        return self._number_of[domain_id]

    def of(self, domain_id: str) -> DomainKind:
        """The kind of a domain."""
        return self.kinds[self._number_of[domain_id]]

    def serving(self, contract_id: str) -> list[list[str]]:
        """By kind, the domains that may start requests of a contract now."""
        found = self._serving.get(contract_id)
        if found is None:
            found = self._serving[contract_id] = [[] for _ in self.kinds]
            for domain_id in self._assignment.serving(contract_id):
                found[self._number_of[domain_id]].append(domain_id)
        return found

    def changed(self) -> None:
        """Domains have come or gone."""
        self._serving.clear()
