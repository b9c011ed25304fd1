"""Effective terms → the immutable SLOContract that the scheduler and the executor read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from superinfer.contracts.contract import Bound, ResourceConstraints, SLOContract
from superinfer.contracts.declaration import Declaration, SubDeclaration, Term, Terms
from superinfer.contracts.inheritance import EffectiveTerms, Origin, inherit
from superinfer.contracts.printable import shown
from superinfer.contracts.problems import raise_problems
from superinfer.contracts.schema import PERCENTILES


@dataclass(frozen=True)
class CompiledContract:
    """A contract, and where each of its terms and of its sub-tasks' terms comes from."""

    contract: SLOContract
    parent_id: str | None
    effective: EffectiveTerms
    sub_effective: dict[str, EffectiveTerms]

    @property
    def origins(self) -> dict[str, Origin]:
        """Origin by dotted path, sub-tasks' terms below `sub_slos.<name>.`."""
        subs = {
            f"sub_slos.{name}.{key}": origin
            for name, effective in self.sub_effective.items()
            for key, origin in effective.origins.items()
        }
        return {**self.effective.origins, **subs}


def compile_declaration(
    declaration: Declaration, parent_id: str | None, parent_terms: Mapping[str, Term], *, version: int = 1
) -> CompiledContract:
    """Merge with the parent's effective terms and build the contract. Raises InvalidContractError."""
    effective = inherit(declaration.service_id, declaration.terms, parent_id, parent_terms)
    raise_problems(_unsaid_permission(effective.terms, declaration.source, "slo"))
    # A sub-task is held to the service's own bounds as well, but asks for no devices of its own.
    sub_effective = {}
    subs: dict[str, SLOContract] = {}
    for name, sub in declaration.sub_slos.items():
        sub_id = f"{declaration.service_id}/{name}"
        sub_effective[name] = inherit(sub_id, sub.terms, declaration.service_id, effective.terms)
        raise_problems(_unsaid_permission(sub_effective[name].terms, declaration.source, f"sub_slos.{name}"))
        subs[name] = build_contract(sub_id, sub, sub_effective[name].terms, version=version, sub_slos={})
    contract = build_contract(declaration.service_id, declaration, effective.terms, version=version, sub_slos=subs)
    return CompiledContract(contract, parent_id, effective, sub_effective)


def build_contract(
    service_id: str,
    declaration: Declaration | SubDeclaration,
    terms: Terms,
    *,
    version: int,
    sub_slos: dict[str, SLOContract],
) -> SLOContract:
    """The contract that says `terms`; what they leave open takes SLOContract's defaults."""
    return SLOContract(
        service_id=service_id,
        version=version,
        description=declaration.description,
        latency=_bounds(terms, "latency"),
        ttft=_bounds(terms, "ttft"),
        tpot=_bounds(terms, "tpot"),
        max_jitter_ms=_number(terms, "latency.max_jitter_ms"),
        availability=_number(terms, "availability"),
        fallback_allowed=terms.get("fallback.allowed") is True,
        alternative_service=_text(terms, "fallback.alternative_service"),
        precision_loss_allowed=terms.get("precision_loss_allowed") is True,
        priority=_number(terms, "priority") or 1.0,
        resources=ResourceConstraints(
            min_gpu_count=int(terms.get("resource_constraints.min_gpu_count", 1)),
            preferred_gpu_type=_text(terms, "resource_constraints.preferred_gpu_type"),
            memory_per_gpu_mb=_number(terms, "resource_constraints.memory_per_gpu_mb"),
            reserved_bandwidth_gb_per_s=_number(terms, "resource_constraints.reserved_bandwidth_gb_per_s"),
        ),
        sub_slos=sub_slos,
    )


def terms_of(contract: SLOContract) -> Terms:
    """The terms that a compiled contract says; values equal to the defaults count as not said."""
    terms: Terms = {}
    names = {percentile: key for key, percentile in PERCENTILES.items()}
    for milestone in ("latency", "ttft", "tpot"):
        for bound in getattr(contract, milestone):
            if bound.percentile in names:
                terms[f"{milestone}.{names[bound.percentile]}"] = bound.bound_ms
    resources = contract.resources
    said: dict[str, Term | None] = {
        "latency.max_jitter_ms": contract.max_jitter_ms,
        "availability": contract.availability,
        "fallback.allowed": contract.fallback_allowed or None,
        "fallback.alternative_service": contract.alternative_service,
        "precision_loss_allowed": contract.precision_loss_allowed or None,
        "priority": contract.priority if contract.priority != 1.0 else None,
        "resource_constraints.min_gpu_count": resources.min_gpu_count if resources.min_gpu_count != 1 else None,
        "resource_constraints.preferred_gpu_type": resources.preferred_gpu_type,
        "resource_constraints.memory_per_gpu_mb": resources.memory_per_gpu_mb,
        "resource_constraints.reserved_bandwidth_gb_per_s": resources.reserved_bandwidth_gb_per_s,
    }
    terms.update({key: value for key, value in said.items() if value is not None})
    return terms


def declaration_of(contract: SLOContract) -> Declaration:
    """The declaration that compiles to `contract` where it has no parent."""
    subs = {name: SubDeclaration(sub.description, terms_of(sub)) for name, sub in contract.sub_slos.items()}
    return Declaration(contract.service_id, contract.service_id, contract.description, terms_of(contract), subs)


def _unsaid_permission(terms: Mapping[str, Term], source: str, path: str) -> list[str]:
    alternative = terms.get("fallback.alternative_service")
    if alternative is None or terms.get("fallback.allowed") is True:
        return []
    return [
        f"{source}: {path}.fallback.alternative_service: {shown(alternative)} is given but allowed is not; "
        "expected allowed: true beside it"
    ]


def _bounds(terms: Mapping[str, Term], milestone: str) -> tuple[Bound, ...]:
    return tuple(
        Bound(percentile, float(terms[key]))
        for name, percentile in PERCENTILES.items()
        if (key := f"{milestone}.{name}") in terms
    )


def _number(terms: Mapping[str, Term], key: str) -> float | None:
    return float(terms[key]) if key in terms else None


def _text(terms: Mapping[str, Term], key: str) -> str | None:
    return str(terms[key]) if key in terms else None
