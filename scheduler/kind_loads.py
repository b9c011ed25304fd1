"""How the work of each contract spreads over domains of several kinds, from the requests that arrive."""

from __future__ import annotations

from dataclasses import dataclass

from superinfer.scheduler.domain_kind import DomainKinds
from superinfer.scheduler.sequence import SequenceState

GAIN = 0.1
"""Weight of the last request of a contract in what is typical of it."""


@dataclass(slots=True)
class _Typical:
    """One contract: by kind, the share of its requests that are placed there, and the device time of one of them."""

    placed: list[float]
    device_s: list[float]


class KindLoads:
    """A domain gets work of a contract in proportion to its speed, among those of the kinds that hold it."""

    def __init__(self, kinds: DomainKinds) -> None:
        self._kinds = kinds
        self._by_contract: dict[str, _Typical] = {}

    def arrived(self, sequence: SequenceState, mask: int) -> None:
        """A request came that the kinds in `mask` hold."""
        typical = self._by_contract.get(sequence.request.contract_id)
        placed = [float(mask >> number & 1) for number in range(len(self._kinds.kinds))]
        device_s = [
            sequence.prefill_target * kind.latency_model.prefill_token_s
            + sequence.outputs_left * kind.latency_model.decode_marginal_s
            for kind in self._kinds.kinds
        ]
        if typical is None:
            self._by_contract[sequence.request.contract_id] = _Typical(placed, device_s)
            return
        for number in range(len(self._kinds.kinds)):
            typical.placed[number] += GAIN * (placed[number] - typical.placed[number])
            typical.device_s[number] += GAIN * (device_s[number] - typical.device_s[number])

    def forget(self, contract_id: str) -> None:
        """Requests of this contract come no more."""
        self._by_contract.pop(contract_id, None)

    def share(self, contract_id: str, number: int) -> float:
        """Share of a contract's requests that one domain of a kind gets."""
        typical = self._by_contract.get(contract_id)
        if typical is None:
            return 0.0
        weight = typical.placed[number] / typical.device_s[number]
        total = self._total(contract_id, typical)
        return weight / total if total > 0.0 else 0.0

    def device_s(self, contract_id: str, number: int) -> float:
        """Seconds that a request of a contract takes, on average over all that come, of one domain of a kind."""
        typical = self._by_contract.get(contract_id)
        if typical is None:
            return 0.0
        total = self._total(contract_id, typical)
        return typical.placed[number] / total if total > 0.0 else 0.0

    def _total(self, contract_id: str, typical: _Typical) -> float:
        serving = self._kinds.serving(contract_id)
        return sum(
            len(domain_ids) * placed / device_s
            for domain_ids, placed, device_s in zip(serving, typical.placed, typical.device_s, strict=True)
        )
