"""On which kinds of domain a waiting request still holds its contract, and how long it may wait for each.

Headroom on a kind is the deadline less now and less the predicted time there: alone on the device at the upper quantile
of the latency model, times a margin of the contract on that kind. The margin follows what load does there: it grows
with each request that was to hold and did not, and shrinks with those that did, so that it settles where no more miss
than the contract allows.

A set of kinds is a bit mask by their numbers, the fastest first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from superinfer.contracts.contract import SLOContract
from superinfer.scheduler.blocks import KVMemory
from superinfer.scheduler.domain_kind import DomainKinds
from superinfer.scheduler.sequence import SequenceState

MARGIN_GAIN = 0.05
LEAST_MISSED = 0.01
"""A margin that shrank more slowly would not follow a load that falls."""
MOST_MARGIN = 4.0


class Placed(NamedTuple):
    """The kinds that hold a request, its second choice where these have no room for it, and when the first of all of
    them no longer holds it.
    """

    holding: int
    second: int
    expiry_s: float


class Headroom:
    """See the module's text. `memories` are those that domains of each kind share, by KV layout."""

    def __init__(self, kinds: DomainKinds, memories: dict[str, KVMemory], block_size: int) -> None:
        self._kinds = kinds
        self._memories = memories
        self._block_size = block_size
        self._asked: dict[tuple[str, int], tuple[int, int]] = {}
        self._margins: dict[tuple[str, int], float] = {}

    def asked(self, contract: SLOContract) -> tuple[int, int]:
        """The kinds that a contract permits, and those that it prefers where they hold a request."""
        key = contract.service_id, contract.version
        found = self._asked.get(key)
        if found is None:
            kinds, wanted = self._kinds.kinds, contract.resources.preferred_gpu_type
            permitted = _mask(number for number, kind in enumerate(kinds) if kind.permits(contract))
            preferred = _mask(n for n, kind in enumerate(kinds) if kind.device_type and kind.device_type == wanted)
            found = self._asked[key] = permitted, preferred & permitted
        return found

    def with_room_for(self, sequence: SequenceState) -> int:
        """The kinds that may serve a request at all: those that its contract permits and that have the KV memory."""
        blocks = -(-(sequence.prompt_length + sequence.request.sampling.max_tokens) // self._block_size)
        large = _mask(number for number, most in enumerate(self._kinds.most_blocks) if most >= blocks)
        return self.asked(sequence.contract)[0] & large

    def place(self, sequence: SequenceState, permitted: int, now: float, free_s: Callable[[int], float]) -> Placed:
        """Those of the kinds `permitted` that hold a request now, if it can wait until a domain of the kind is free.

        Those that its contract prefers alone while one of them does; the others are its second choice. Where that
        leaves nothing, the one that would hold it longest if it began at once, or else without a margin.
        """
        _, preferred = self.asked(sequence.contract)
        tiers: tuple[dict[int, float], ...] = ({}, {}, {})
        for number in range(len(self._kinds.kinds)):
            if permitted >> number & 1:
                careful_s, bare_s = self._expiry_s(sequence, number)
                if careful_s > now:
                    tiers[0 if careful_s > free_s(number) else 1][number] = careful_s
                elif bare_s > now:
                    tiers[2][number] = bare_s
        expiries = {**tiers[0], **tiers[1], **tiers[2]}
        if not expiries:
            return Placed(0, 0, now)
        unsure = tiers[1] or tiers[2]
        holding = list(tiers[0]) or [max(unsure, key=lambda number: unsure[number])]
        chosen = [number for number in holding if preferred >> number & 1] or holding
        return Placed(_mask(chosen), _mask(n for n in expiries if n not in chosen), min(expiries.values()))

    def slack_s(self, sequence: SequenceState, now: float) -> float:
        """The most slack that a request has on any kind that may serve it."""
        permitted = self.with_room_for(sequence)
        numbers = (number for number in range(len(self._kinds.kinds)) if permitted >> number & 1)
        return max((self._expiry_s(sequence, number)[1] - now for number in numbers), default=-math.inf)

    def ended(self, sequence: SequenceState, number: int, *, met: bool) -> None:
        """A request that a kind was to hold completed there."""
        key = sequence.request.contract_id, number
        contract = sequence.contract
        percentile = max(bounds[-1].percentile for bounds in (contract.latency, contract.ttft, contract.tpot) if bounds)
        may_miss = max(1.0 - percentile, LEAST_MISSED)
        margin = self._margins.get(key, 1.0) + MARGIN_GAIN * ((not met) - may_miss)
        self._margins[key] = min(max(margin, 1.0), MOST_MARGIN)

    def forget(self, contract_id: str) -> None:
        """No new request of this contract will come."""
        for number in range(len(self._kinds.kinds)):
            self._margins.pop((contract_id, number), None)
        for key in [key for key in self._asked if key[0] == contract_id]:
            del self._asked[key]

    def _expiry_s(self, sequence: SequenceState, number: int) -> tuple[float, float]:
        """Until when a request may wait for a kind and still hold, with the margin and without; −∞ for never."""
        kind = self._kinds.kinds[number]
        model, target, left = kind.latency_model, sequence.prefill_target, sequence.outputs_left
        start = sequence.computed
        if sequence.kept is not None and sequence.kept.memory is not self._memories.get(kind.kv_layout):
            start = 0
        first_s = model.prefill_s(start, max(target - start, 1))
        if sequence.tpot_s < math.inf and model.decode_step_s(target + left) > sequence.tpot_s:
            return -math.inf, -math.inf
        total_s = first_s + model.decodes_s(target, left - 1)
        margin = model.upper_ratio * self._margins.get((sequence.request.contract_id, number), 1.0)
        deadline_s = sequence.deadline_s
        first_deadline_s = sequence.ttft_deadline_s if sequence.planned_outputs == 0 else math.inf
        return (
            min(deadline_s - margin * total_s, first_deadline_s - margin * first_s),
            min(deadline_s - total_s, first_deadline_s - first_s),
        )


def _mask(numbers: Iterable[int]) -> int:
    return sum(1 << number for number in numbers)
