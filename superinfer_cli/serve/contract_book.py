"""Contracts in force while the server runs: every change is checked against the device and saved before it is made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from superinfer.contracts.contract import SLOContract, best_effort_contract
from superinfer.contracts.declaration import Declaration
from superinfer.contracts.loading import load_declarations
from superinfer.contracts.registry import Change, ContractRegistry
from superinfer.contracts.state_file import ContractState, StateFile
from superinfer.profiler.feasibility import BoundCheck, UnattainableContractError, shortfalls
from superinfer.profiler.latency_model import LatencyModel


class ContractBook:
    """The registry, and beside it what outlives the server.

    Without a `state_file` changes last until the server ends; without a `latency_model`, one for all contracts or that
    of each, bounds are not checked. The callers see to it that one change is made at a time.
    """

    def __init__(
        self,
        registry: ContractRegistry,
        *,
        state_file: StateFile | None = None,
        state: ContractState | None = None,
        latency_model: LatencyModel | Callable[[SLOContract], LatencyModel] | None = None,
        allow_unattainable: bool = False,
    ) -> None:
        self.registry = registry
        self._state_file = state_file
        self._state = state or ContractState()
        self._latency_model = latency_model
        self._allow_unattainable = allow_unattainable

    async def register(self, declarations: Sequence[Declaration]) -> Change:
        """Add contracts, all or none. Raises ContractError, or ResourceError where they cannot be saved."""
        change = self.registry.plan_register(declarations)
        return await self._make(change, self._state.with_declared(declarations))

    async def update(self, declaration: Declaration) -> Change:
        """Replace what a service declared. Raises as `register`."""
        change = self.registry.plan_update(declaration)
        return await self._make(change, self._state.with_declared([declaration]))

    async def retire(self, service_id: str) -> Change:
        """End a contract. Raises as `register`."""
        change = self.registry.plan_retire(service_id)
        return await self._make(change, self._state.with_retired(service_id))

    def shortfalls(self, change: Change) -> list[BoundCheck]:
        """The bounds of a change that the device cannot hold even for a request of one token."""
        return [] if self._latency_model is None else shortfalls(change.contracts, self._latency_model)

    def unattainable(self, contracts: Sequence[SLOContract]) -> list[BoundCheck]:
        """Bounds that are out of the device's reach; none where such are let in."""
        if self._latency_model is None or self._allow_unattainable:
            return []
        return shortfalls(contracts, self._latency_model)

    async def _make(self, change: Change, state: ContractState) -> Change:
        if (short := self.shortfalls(change)) and not self._allow_unattainable:
            raise UnattainableContractError(short)
        state = state.with_versions(self.registry.versions_after(change))
        if self._state_file is not None:
            # Beside the event loop: the disk may take its time, and streams go on meanwhile.
            await asyncio.to_thread(self._state_file.save, state)
        self.registry.apply(change)
        self._state = state
        return change


def load_contracts_and_state(
    contracts: Path | None, state_file: StateFile | None, note: Callable[[str], None]
) -> tuple[ContractRegistry, ContractState]:
    """The contracts to start with: those of files, changed as was asked at run time, and the best-effort one.

    `note` is told where the state stands against a file. Raises ContractError or ResourceError.
    """
    state = ContractState() if state_file is None else state_file.load()
    registry = ContractRegistry(state.versions)
    declared: list[Declaration] = []
    for declaration in load_declarations(contracts) if contracts is not None else ():
        service_id = declaration.service_id
        if state_file is not None and service_id in state.retired:
            note(f"contract {service_id} of {declaration.source} was retired at run time ({state_file.path})")
        elif state_file is not None and service_id in state.declarations:
            note(f"contract {service_id} of {declaration.source} was updated at run time ({state_file.path})")
        else:
            declared.append(declaration)
    registry.register([*declared, *state.declarations.values()])
    registry.register(best_effort_contract())
    state = state.with_versions(registry.versions)
    if state_file is not None:
        state_file.save(state)
    return registry, state
