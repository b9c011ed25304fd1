"""Bandwidth of running requests (SPEC S6): reserved when one starts, released when it leaves, kept by the planner.

A contract with `reserved_bandwidth_gb_per_s` holds that rate of a domain while at least one of its requests is there,
up to the latest deadline among them: a request that is late has nothing more to claim. One whose contract does not
fit waits, for room or for another domain. No device sets GB/s aside by itself; the promise is kept by what best-
effort sequences may move in a step, which is what the ledger leaves of the step's time. Whoever's turn is longest ago
goes first, and one of them always may, so that they get on.

Domains may share a device, as cores share a memory bus: its account is one. A step of best effort alone beside another
domain's reservation is spread over the time in which the rest of the bandwidth moves what it has to move, or less of it
where that costs the holder more than it can bear (`superinfer.scheduler.best_effort_share`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from superinfer.contracts.contract import SLOContract
from superinfer.profiler.latency_model import LatencyModel, StepShape
from superinfer.scheduler.best_effort_share import BestEffortShare
from superinfer.scheduler.config import DomainSpec
from superinfer.scheduler.domain import NOT_PACED, InFlightStep, Pacing
from superinfer.scheduler.ledger import BandwidthLedger, DeviceBandwidth, Priority, Reservation
from superinfer.scheduler.outputs import Refusal
from superinfer.scheduler.sequence import SequenceState
from superinfer.scheduler.steps import StepResult

OPEN_END_S = 60.0
"""How long a reservation lasts for a request without an end-to-end deadline; each that starts renews it."""


@dataclass(slots=True, eq=False)
class _Hold:
    """One contract's reservation on one domain, and the sequences for which it stands."""

    domain_id: str
    reservation_id: int
    gb_per_s: float
    members: set[int] = field(default_factory=set)


class BandwidthGate:
    """Reservations of all domains. A domain that is ready anew begins with none."""

    def __init__(self) -> None:
        self._declared: dict[str, float] = {}
        self._specs: dict[str, DomainSpec] = {}
        self.ledger = BandwidthLedger([])
        self._holds: dict[tuple[str, str, float], _Hold] = {}
        self._hold_of: dict[int, tuple[str, str, float]] = {}
        self._last_turns: dict[int, int] = {}
        self._turn = 0
        self._shares: dict[str, BestEffortShare] = {}

    @property
    def is_used(self) -> bool:
        """Whether any contract reserves bandwidth on a domain that has some to reserve."""
        return bool(self._declared) and bool(self._specs)

    def declare(self, contract_id: str, contract: SLOContract) -> None:
        """What requests of a contract reserve from now on; those in flight keep what they have."""
        wanted = _wanted(contract)
        if wanted:
            self._declared[contract_id] = wanted
        else:
            self._declared.pop(contract_id, None)

    def domain_ready(self, spec: DomainSpec, now: float) -> None:
        """A domain is up, or up again; one whose bandwidth is not known reserves none."""
        self.domain_failed(spec.domain_id, now)
        if spec.bandwidth_gb_per_s > 0.0 and spec.domain_id not in self._specs:
            device_id = spec.device_id or spec.domain_id
            if device_id not in self.ledger.device_ids:
                self.ledger.add_device(DeviceBandwidth(device_id, spec.bandwidth_gb_per_s))
                self._shares[device_id] = BestEffortShare(self.ledger, device_id, spec.bandwidth_gb_per_s)
            self._specs[spec.domain_id] = spec

    def device_of(self, domain_id: str) -> str:
        """The ledger's device that a domain's memory traffic goes through."""
        spec = self._specs.get(domain_id)
        return (spec.device_id if spec is not None else "") or domain_id

    def is_reserved(self, domain_id: str, now: float) -> bool:
        """Whether anybody holds bandwidth of this domain's device, here or in another domain."""
        return domain_id in self._specs and bool(self.ledger.reservations(self.device_of(domain_id), now))

    def refusal(self, contract_id: str, domain_ids: Iterable[str]) -> Refusal | None:
        """Why a request can never start on any of these domains, or None."""
        wanted = self._declared.get(contract_id, 0.0)
        known = [
            self.ledger.reservable_gb_per_s(self.device_of(each)) if each in self._specs else math.inf
            for each in domain_ids
        ]
        if not wanted or not known or wanted <= max(known):
            return None
        return Refusal(
            code="bandwidth_exceeded",
            message=f"contract {contract_id!r} reserves {wanted:g} GB/s; at most {max(known):g} GB/s of a domain that "
            "serves it can be reserved",
        )

    def hidden(self, domain_id: str, contract_ids: Collection[str], now: float) -> frozenset[str]:
        """Those of `contract_ids` whose reservation this domain has no room for now."""
        return frozenset(
            each for each in contract_ids if not self._fits(domain_id, each, self._declared.get(each), now)
        )

    def may_enter(self, domain_id: str, sequence: SequenceState, now: float) -> bool:
        """Whether a sequence may start on a domain now."""
        return self._fits(domain_id, sequence.request.contract_id, _wanted(sequence.contract), now)

    def entered(self, domain_id: str, sequence: SequenceState, now: float) -> None:
        """A sequence has started on a domain that it may enter: reserve, or renew what its contract holds there."""
        wanted = _wanted(sequence.contract)
        end_s = now + OPEN_END_S if math.isinf(sequence.deadline_s) else sequence.deadline_s
        if not wanted or domain_id not in self._specs or end_s <= now:
            return
        key = (domain_id, sequence.request.contract_id, wanted)
        hold = self._holds.get(key)
        if hold is None or not self.ledger.extend(hold.reservation_id, end_s, now):
            device_id = self.device_of(domain_id)
            granted = self.ledger.reserve(device_id, wanted, (end_s - now) * 1e3, Priority.NORMAL, key[1], now)
            if not isinstance(granted, Reservation):
                return
            members = set() if hold is None else hold.members
            hold = self._holds[key] = _Hold(domain_id, granted.reservation_id, wanted, members)
        hold.members.add(sequence.sequence_id)
        self._hold_of[sequence.sequence_id] = key

    def left(self, sequence: SequenceState, now: float) -> None:
        """A sequence ended, or was put back to wait: with the last of its contract the reservation ends."""
        self._last_turns.pop(sequence.sequence_id, None)
        key = self._hold_of.pop(sequence.sequence_id, None)
        if key is None:
            return
        hold = self._holds[key]
        hold.members.discard(sequence.sequence_id)
        if not hold.members:
            del self._holds[key]
            self.ledger.release(hold.reservation_id, now)

    def domain_failed(self, domain_id: str, now: float) -> None:
        """Nothing runs on a domain any more, so that nothing is reserved there."""
        if domain_id in self._specs:
            self._share_of(domain_id).failed(domain_id)
        for key in [key for key, hold in self._holds.items() if hold.domain_id == domain_id]:
            hold = self._holds.pop(key)
            self.ledger.release(hold.reservation_id, now)
            for sequence_id in hold.members:
                del self._hold_of[sequence_id]

    def held_back(
        self, domain_id: str, running: Iterable[SequenceState], model: LatencyModel, now: float
    ) -> list[SequenceState]:
        """Those of a domain's decoding sequences that may not decode in the next step.

        That is best effort beyond what the ledger leaves of the step's time, which grows with each that goes in. Each
        moves the keys and values of its context; the weights are read for whoever holds a reservation.
        """
        spec = self._specs.get(domain_id)
        if spec is None or not self.is_reserved(domain_id, now):
            return []
        if not any(hold.domain_id == domain_id for hold in self._holds.values()):
            return []  # nobody here to hold back for; `pacing` sees to other domains
        shape = StepShape()
        best_effort: list[SequenceState] = []
        for sequence in running:
            if is_unreserved(sequence.contract):
                best_effort.append(sequence)
            else:
                shape.add_decode(sequence.computed)
        self._turn += 1
        back: list[SequenceState] = []
        moved_bytes = 0.0
        for sequence in sorted(best_effort, key=lambda s: (self._last_turns.get(s.sequence_id, 0), s.sequence_id)):
            with_it = shape.copy()
            with_it.add_decode(sequence.computed)
            wanted_bytes = moved_bytes + spec.kv_bytes_per_token * (sequence.computed + 1)
            left_gb = self._share_of(domain_id).rest_gb(domain_id, now, model.step_s(with_it))
            if moved_bytes and wanted_bytes > 1e9 * left_gb:
                back.append(sequence)
                continue
            shape, moved_bytes = with_it, wanted_bytes
            self._last_turns[sequence.sequence_id] = self._turn
        return back

    def pacing(
        self, domain_id: str, members: Iterable[SequenceState], shape: StepShape, model: LatencyModel, now: float
    ) -> Pacing:
        """How a step gives way to what is reserved beside it; not at all where it holds more than best effort."""
        share = self._share_of(domain_id)
        if not shape.tokens or not all(is_unreserved(each.contract) for each in members):
            share.leave(domain_id)
            return NOT_PACED
        return share.pacing(self._specs[domain_id], shape, model, self.holding(now), now)

    def observed(self, step: InFlightStep, result: StepResult, model: LatencyModel, now: float) -> None:
        """A step is over: what best effort moved, or how long one took that it may have been beside."""
        spec = self._specs.get(result.domain_id)
        if spec is None:
            return
        share = self._share_of(spec.domain_id)
        if step.pacing is not NOT_PACED:
            share.moved(spec.domain_id, step, result)
            return
        holds = (each for each in self._holds.values() if each.domain_id == spec.domain_id)
        reserved = math.fsum(each.gb_per_s for each in holds if self.ledger.is_held(each.reservation_id, now))
        if reserved:
            share.held(spec, step.shape, result, model, reserved)

    def holding(self, now: float) -> set[str]:
        """The domains that hold bandwidth now."""
        return {each.domain_id for each in self._holds.values() if self.ledger.is_held(each.reservation_id, now)}

    def left_gb_per_s(self, domain_id: str, now: float) -> float | None:
        """The rate that reservations leave a domain whose last step was best effort alone; None where none is kept
        from it.
        """
        if not self.is_reserved(domain_id, now) or not (share := self._share_of(domain_id)).has(domain_id):
            return None
        return share.left_gb_per_s(domain_id, self.holding(now), now)

    def reserved_gb_per_s(self, now: float) -> dict[str, dict[str, float]]:
        """What each contract holds of each domain, for metrics."""
        held: dict[str, dict[str, float]] = {domain_id: {} for domain_id in self._specs}
        for (domain_id, contract_id, wanted), hold in self._holds.items():
            if self.ledger.is_held(hold.reservation_id, now):
                held[domain_id][contract_id] = held[domain_id].get(contract_id, 0.0) + wanted
        return held

    def _share_of(self, domain_id: str) -> BestEffortShare:
        return self._shares[self.device_of(domain_id)]

    def _fits(self, domain_id: str, contract_id: str, wanted: float | None, now: float) -> bool:
        if not wanted or domain_id not in self._specs:
            return True
        hold = self._holds.get((domain_id, contract_id, wanted))
        if hold is not None and self.ledger.is_held(hold.reservation_id, now):
            return True
        return self.ledger.fits(self.device_of(domain_id), wanted, now)


def is_unreserved(contract: SLOContract) -> bool:
    """Whether requests of a contract take what is left: no bounds, and no bandwidth of their own."""
    return contract.is_best_effort and not _wanted(contract)


def _wanted(contract: SLOContract) -> float:
    return contract.resources.reserved_bandwidth_gb_per_s or 0.0
