"""All contracts in force, with inheritance between them. A batch registers as a whole or not at all."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from superinfer.contracts.compile import CompiledContract, compile_declaration, declaration_of
from superinfer.contracts.contract import SLOContract
from superinfer.contracts.declaration import Declaration, Terms
from superinfer.contracts.errors import ContractConflictError, UnknownContractError
from superinfer.contracts.naming import did_you_mean, parent_id
from superinfer.contracts.problems import InvalidContractError, raise_problems, shown

Registrable = Declaration | SLOContract
Contracts = list[SLOContract]


class ContractRegistry:
    """Contracts by service id. Not for use by several threads at once."""

    def __init__(self) -> None:
        self._declarations: dict[str, Declaration] = {}
        self._compiled: dict[str, CompiledContract] = {}

    def register(self, contracts: Registrable | Iterable[Registrable]) -> Contracts:
        """Add one contract or a batch; return those that are new or whose terms changed through a new parent.

        Raises ContractConflictError when an id is there already, or twice in the batch, and
        InvalidContractError when an alternative_service is not registered; then nothing is registered.
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
        compiled = self._compile_all(declarations)
        changed = [entry.contract for key, entry in compiled.items() if self._compiled.get(key) is not entry]
        self._declarations, self._compiled = declarations, compiled
        return changed

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

    def _compile_all(self, declarations: dict[str, Declaration]) -> dict[str, CompiledContract]:
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
        """The entry that is there already where nothing changed, else a new one with the next version."""
        earlier = self._compiled.get(declaration.service_id)
        if earlier is None:
            return compile_declaration(declaration, parent, parent_terms)
        version = earlier.contract.version
        same = compile_declaration(declaration, parent, parent_terms, version=version)
        if same == earlier:
            return earlier
        return compile_declaration(declaration, parent, parent_terms, version=version + 1)


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
