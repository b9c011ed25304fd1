"""All contracts in force, with inheritance between them. A change is made as a whole or not at all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from superinfer.contracts.compile import CompiledContract, compile_declaration, declaration_of
from superinfer.contracts.contract import BEST_EFFORT_ID, SLOContract
from superinfer.contracts.declaration import Declaration, Terms
from superinfer.contracts.errors import ContractConflictError, UnknownContractError
from superinfer.contracts.naming import did_you_mean, parent_id
from superinfer.contracts.printable import shown
from superinfer.contracts.problems import InvalidContractError, raise_problems
from superinfer.contracts.versions import KnownVersion, fingerprint, next_version

Registrable = Declaration | SLOContract
Contracts = list[SLOContract]


@dataclass(frozen=True)
class Change:
    """What a registration, update or retirement makes of a registry: checked, and not made until `apply`.

    `contracts` are those that are new or whose terms change, children of a changed parent included; `retired` the ids
    that go; `declarations` and `compiled` all that is in force then.
    """

    contracts: Contracts
    retired: tuple[str, ...]
    declarations: Mapping[str, Declaration]
    compiled: Mapping[str, CompiledContract]


class ContractRegistry:
    """Contracts by service id. Not for use by several threads at once.

    `versions` are those of an earlier life, so that numbers go on from there.
    """

    def __init__(self, versions: Mapping[str, KnownVersion] | None = None) -> None:
        self._declarations: Mapping[str, Declaration] = {}
        self._compiled: Mapping[str, CompiledContract] = {}
        self._versions: dict[str, KnownVersion] = dict(versions or {})

    def register(self, contracts: Registrable | Iterable[Registrable]) -> Contracts:
        """Add one contract or a batch at once; return those that are new or whose terms changed.

        Raises as `plan_register`; then nothing is registered.
        """
        change = self.plan_register(contracts)
        self.apply(change)
        return change.contracts

    def plan_register(self, contracts: Registrable | Iterable[Registrable]) -> Change:
        """The addition of one contract or a batch.

        Raises ContractConflictError when an id is there already, or twice in the batch, and
        InvalidContractError when an alternative_service is not registered.
        """
        batch = [contracts] if isinstance(contracts, Declaration | SLOContract) else list(contracts)
        declarations = dict(self._declarations)
        for item in batch:
            declaration = declaration_of(item) if isinstance(item, SLOContract) else item
            if (earlier := declarations.get(declaration.service_id)) is not None:
                places = {earlier.source, declaration.source} - {declaration.service_id}
                where = f" ({' and '.join(sorted(places))})" if places else ""
                raise ContractConflictError(
                    f"service_id {declaration.service_id!r} is registered twice{where}; expected each id once"
                )
            declarations[declaration.service_id] = declaration
        return self._plan(declarations)

    def plan_update(self, declaration: Declaration) -> Change:
        """The replacement of what a registered service declared.

        Raises UnknownContractError, ContractConflictError for the contract of requests that name none, and
        InvalidContractError as `plan_register`.
        """
        self._check_may_change(declaration.service_id)
        return self._plan({**self._declarations, declaration.service_id: declaration})

    def plan_retire(self, service_id: str) -> Change:
        """The end of a contract. Raises UnknownContractError, and ContractConflictError while others depend on it:
        without their parent, children would silently promise less.
        """
        self._check_may_change(service_id)
        children = [other for other in self._declarations if parent_id(other, self._declarations) == service_id]
        users = [entry.contract.service_id for entry in self._compiled.values() if _falls_back_to(entry, service_id)]
        for dependents, role in ((children, "parent"), (users, "alternative_service")):
            if dependents := [other for other in dependents if other != service_id]:
                raise ContractConflictError(
                    f"contract {service_id!r} is the {role} of {', '.join(sorted(dependents))}; "
                    "update or retire those first"
                )
        return self._plan({key: value for key, value in self._declarations.items() if key != service_id})

    def apply(self, change: Change) -> None:
        """Make a change that was planned on the registry as it is now."""
        self._declarations, self._compiled = change.declarations, change.compiled
        self._versions = self.versions_after(change)

    def versions_after(self, change: Change) -> dict[str, KnownVersion]:
        """The last version of every contract, those retired included, once a change is made."""
        known = {entry.contract.service_id: entry.contract for entry in change.compiled.values()}
        return {
            **self._versions,
            **{key: KnownVersion(contract.version, fingerprint(contract)) for key, contract in known.items()},
        }

    @property
    def versions(self) -> dict[str, KnownVersion]:
        """The last version of every contract, those retired included."""
        return dict(self._versions)

    def get(self, service_id: str) -> SLOContract:
        """The contract of a service. Raises UnknownContractError."""
        return self.compiled(service_id).contract

    def compiled(self, service_id: str) -> CompiledContract:
        """The contract of a service with the origin of each term. Raises UnknownContractError."""
        if service_id not in self._compiled:
            nearest = did_you_mean(service_id, self._compiled)
            known = f"; registered: {', '.join(sorted(self._compiled)) or 'none'}"
            raise UnknownContractError(f"contract {shown(service_id)} is not registered{nearest or known}")
        return self._compiled[service_id]

    def list(self) -> Contracts:
        """All contracts, by service id."""
        return [self._compiled[service_id].contract for service_id in sorted(self._compiled)]

    def resolve(self, contract_id: str) -> SLOContract:
        """The contract that a request names: `<service_id>` or `<service_id>/<sub>`. Raises UnknownContractError."""
        service_id, slash, sub = contract_id.partition("/")
        contract = self.get(service_id)
        if not slash:
            return contract
        if sub not in contract.sub_slos:
            known = ", ".join(sorted(contract.sub_slos)) or "none"
            raise UnknownContractError(
                f"contract {shown(contract_id)} is not registered; sub-tasks of {service_id}: {known}"
            )
        return contract.sub_slos[sub]

    def _check_may_change(self, service_id: str) -> None:
        self.get(service_id)
        if service_id == BEST_EFFORT_ID:
            raise ContractConflictError(f"contract {service_id!r} is of requests that name none; it cannot be changed")

    def _plan(self, declarations: Mapping[str, Declaration]) -> Change:
        compiled = self._compile_all(declarations)
        changed = [
            entry.contract
            for key, entry in compiled.items()
            if key not in self._compiled or self._compiled[key].contract != entry.contract
        ]
        retired = tuple(sorted(self._declarations.keys() - declarations.keys()))
        return Change(changed, retired, declarations, compiled)

    def _compile_all(self, declarations: Mapping[str, Declaration]) -> dict[str, CompiledContract]:
        """Compile parents before children (they have shorter ids), with the version raised where terms changed."""
        compiled: dict[str, CompiledContract] = {}
        problems: list[str] = []
        for service_id in sorted(declarations, key=lambda name: (len(name), name)):
            declaration = declarations[service_id]
            parent = parent_id(service_id, declarations)
            parent_terms = compiled[parent].effective.terms if parent in compiled else {}
            try:
                entry = self._compile(declaration, parent, parent_terms)
            except InvalidContractError as error:
                problems += error.problems
                continue
            problems += _missing_alternatives(entry.contract, declaration.source, declarations)
            compiled[service_id] = entry
        raise_problems(problems)
        return compiled

    def _compile(self, declaration: Declaration, parent: str | None, parent_terms: Terms) -> CompiledContract:
        """The entry with the version that was known where the terms are the same, else with the next one."""
        known = self._versions.get(declaration.service_id)
        first = compile_declaration(declaration, parent, parent_terms)
        version = next_version(first.contract, known)
        return first if version == 1 else compile_declaration(declaration, parent, parent_terms, version=version)


def _falls_back_to(entry: CompiledContract, service_id: str) -> bool:
    parts = (entry.contract, *entry.contract.sub_slos.values())
    return any(part.alternative_service == service_id for part in parts)


def _missing_alternatives(contract: SLOContract, source: str, registered: Collection[str]) -> list[str]:
    problems = []
    for path, part in (("slo", contract), *((f"sub_slos.{name}", sub) for name, sub in contract.sub_slos.items())):
        alternative = part.alternative_service
        inherited = path != "slo" and alternative == contract.alternative_service
        if alternative is not None and alternative not in registered and not inherited:
            expected = did_you_mean(alternative, registered) or "; expected the service_id of a registered contract"
            problems.append(
                f"{source}: {path}.fallback.alternative_service: {shown(alternative)} does not exist{expected}"
            )
    return problems
