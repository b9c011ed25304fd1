"""The contracts that requests may use, by id, their sub-tasks among them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from superinfer.contracts.contract import SLOContract


class ContractBook:
    """Services and their parts: `<id>` and `<id>/<sub>`."""

    def __init__(self) -> None:
        self._contracts: dict[str, SLOContract] = {}

    @property
    def by_id(self) -> Mapping[str, SLOContract]:
        """Every contract and every sub-task."""
        return self._contracts

    def add(self, contract: SLOContract) -> tuple[Collection[str], Collection[str]]:
        """Take a service in, in the place of an older version. Returns the ids that are gone, and those that are new or
        have changed.
        """
        parts = {f"{contract.service_id}/{name}": sub for name, sub in contract.sub_slos.items()}
        present = {contract.service_id: contract, **parts}
        gone = [each for each in self.drop(contract.service_id) if each not in present]
        self._contracts.update(parts)
        self._contracts[contract.service_id] = contract
        return gone, present

    def drop(self, service_id: str) -> list[str]:
        """Forget a service and its parts; returns the ids that were there."""
        contract = self._contracts.get(service_id)
        if contract is None:
            return []
        ids = [service_id, *(f"{service_id}/{name}" for name in contract.sub_slos)]
        return [each for each in ids if self._contracts.pop(each, None) is not None]
