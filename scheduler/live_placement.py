"""Placement while serving, where domains are of several kinds: who may start which request, by which model and limits.

Domains pull their work as among equals; placement decides what each of them sees (`superinfer.scheduler.placed_queues`)
by the headroom that a request has on each kind (`superinfer.scheduler.headroom`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from superinfer.contracts.contract import SLOContract
from superinfer.scheduler.blocks import KVMemory
from superinfer.scheduler.columns import SequenceTable
from superinfer.scheduler.config import DomainSpec, SchedulerConfig
from superinfer.scheduler.domain import DomainState
from superinfer.scheduler.domain_kind import DomainKind, DomainKinds
from superinfer.scheduler.fault_map import DomainAssignment
from superinfer.scheduler.headroom import Headroom
from superinfer.scheduler.kind_loads import KindLoads
from superinfer.scheduler.outputs import Refusal
from superinfer.scheduler.placed_queues import PlacedQueues
from superinfer.scheduler.policies.base import Policy
from superinfer.scheduler.policies.slack import SlackPolicy
from superinfer.scheduler.sequence import SequenceState
from superinfer.scheduler.step_memory import Ground


class LivePlacement:
    """The kinds of one scheduler. `domains` and `memories` are the scheduler's own, which it fills as domains come."""

    def __init__(
        self,
        kinds: Sequence[DomainKind],
        policy: Policy,
        table: SequenceTable,
        assignment: DomainAssignment,
        domains: Mapping[str, DomainState],
        memories: dict[str, KVMemory],
        config: SchedulerConfig,
    ) -> None:
        self.kinds = DomainKinds(kinds, assignment)
        self.headroom = Headroom(self.kinds, memories, config.block_size)
        self.loads = KindLoads(self.kinds)
        by_headroom = config.placement == "headroom" and isinstance(policy, SlackPolicy)
        self.queues = PlacedQueues(
            policy.waiting_key,
            config.block_size,
            kinds=self.kinds,
            headroom=self.headroom,
            domains=domains,
            by_headroom=by_headroom,
        )
        self._assignment = assignment
        self._grounds = [
            Ground.of(table, self.queues, kind.latency_model, kind.limits(config), self._request_s(number))
            for number, kind in enumerate(self.kinds.kinds)
        ]

    def add(self, spec: DomainSpec) -> DomainKind:
        """A domain is up; its kind."""
        self.kinds.add(spec)
        return self.kinds.of(spec.domain_id)

    def ground_of(self, domain_id: str) -> Ground:
        """What steps of a domain are built on."""
        return self._grounds[self.kinds.number_of(domain_id)]

    def arrived(self, sequence: SequenceState) -> None:
        """A request was admitted, and waits."""
        mask = self.queues.placed.get(sequence.sequence_id, 0)
        self.loads.arrived(sequence, mask or self.headroom.with_room_for(sequence))

    def ended(self, sequence: SequenceState, *, met: bool | None) -> None:
        """A request ended; one that completed where it was to hold shows whether it did."""
        placed = self.queues.placed.pop(sequence.sequence_id, 0)
        if met is None or not sequence.domain_ids:
            return
        number = self.kinds.number_of(sequence.domain_ids[-1])
        if placed >> number & 1:
            self.headroom.ended(sequence, number, met=met)

    def choices(self, sequence: SequenceState) -> list[tuple[Ground, Callable[[str], float]]]:
        """The kinds that could serve a request now, and of each the share of a contract's work that one of its domains
        gets.
        """
        large, serving = self.headroom.with_room_for(sequence), self.kinds.serving(sequence.request.contract_id)
        return [
            (ground, self._share(number))
            for number, ground in enumerate(self._grounds)
            if large >> number & 1 and serving[number]
        ]

    def forget(self, contract_id: str) -> None:
        """No new request of this contract will come."""
        self.loads.forget(contract_id)
        self.headroom.forget(contract_id)

    def may_start(self, domain_id: str) -> bool:
        """Whether a request waits that this domain may start."""
        queues = self.queues
        if not queues.count:
            return False
        queues.look_from(domain_id)
        contract_ids = queues.contract_ids()
        queues.look_from(None)
        return any(domain_id in self._assignment.serving(each) for each in contract_ids)

    def permitted(self, contract: SLOContract, domain_ids: Iterable[str]) -> list[str]:
        """Those of these domains that a contract permits."""
        mask, _ = self.headroom.asked(contract)
        return [each for each in domain_ids if mask >> self.kinds.number_of(each) & 1]

    def refusal(self, contract_id: str) -> Refusal:
        """Why no domain serves a contract, whatever the load."""
        known = ", ".join(
            f"{kind.devices} × {kind.device_type or 'device'} {kind.precision}".strip() for kind in self.kinds.kinds
        )
        return Refusal(
            code="no_domain",
            message=f"contract {contract_id!r}: no domain has the devices and the precision it asks for; there are: "
            f"{known}",
        )

    def _share(self, number: int) -> Callable[[str], float]:
        return lambda contract_id: self.loads.share(contract_id, number)

    def _request_s(self, number: int) -> Callable[[str], float]:
        return lambda contract_id: self.loads.device_s(contract_id, number)
