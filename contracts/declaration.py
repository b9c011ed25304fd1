"""A contract as its owner declared it: only what it says, flattened, so that inheritance can go term by term."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from pydantic import BaseModel, ValidationError

from superinfer.contracts.naming import ID_ACCEPTS, is_valid_id
from superinfer.contracts.printable import printable, shown
from superinfer.contracts.problems import InvalidContractError, accepts, describe, raise_problems
from superinfer.contracts.schema import PERCENTILES, ContractDocument
from superinfer.contracts.short_form import to_long_form

Term = float | int | bool | str
Terms = dict[str, Term]
"""What is said, by dotted path: {"latency.p99_ms": 150.0, "fallback.allowed": False, …}."""

MILESTONES = ("latency", "ttft", "tpot")


@dataclass(frozen=True)
class Declaration:
    """One service's own words. `source` says where they stand, for error messages."""

    service_id: str
    source: str
    description: str = ""
    terms: Terms = field(default_factory=dict)
    sub_slos: dict[str, SubDeclaration] = field(default_factory=dict)


@dataclass(frozen=True)
class SubDeclaration:
    """One sub-task's own words."""

    description: str
    terms: Terms


def declare(document: object, source: str) -> Declaration:
    """Validate one contract as it was read from a file. Raises InvalidContractError with all its problems."""
    if not isinstance(document, Mapping):
        raise InvalidContractError([f"{source}: {shown(document)} is not accepted; expected {accepts(())}"])
    _check_keys_are_text(document, source)
    long_form = to_long_form(document)
    try:
        contract = ContractDocument.model_validate(long_form.document)
    except ValidationError as error:
        has_slo = "slo" in document
        details = error.errors(include_url=False, include_context=False)
        raise InvalidContractError(
            [describe(detail, source, long_form.written_at, has_slo=has_slo) for detail in details]
        ) from None
    declaration = _flatten(contract, source)
    problems = _contradictions(contract.slo, "slo", source)
    for name, sub in contract.sub_slos.items():
        if not is_valid_id(name):
            problems.append(f"{source}: sub_slos: {shown(name)} is not accepted; expected {ID_ACCEPTS}")
        problems += _contradictions(sub, f"sub_slos.{printable(name)}", source)
    own_alternative = declaration.terms.get("fallback.alternative_service")
    if own_alternative == declaration.service_id:
        problems.append(
            f"{source}: slo.fallback.alternative_service: {shown(own_alternative)} is not accepted; "
            "expected another service than this one"
        )
    raise_problems(problems)
    return declaration


def _check_keys_are_text(value: object, source: str, path: str = "") -> None:
    if isinstance(value, Mapping):
        for key, child in value.items():
            if not isinstance(key, str):
                raise_problems([f"{source}: {path}{shown(key)}: is not accepted as a key; expected text"])
            _check_keys_are_text(child, source, f"{path}{printable(key)}.")


def _flatten(contract: ContractDocument, source: str) -> Declaration:
    terms = _slo_terms(contract.slo)
    if contract.resource_constraints is not None:
        terms.update(_said(contract.resource_constraints, "resource_constraints."))
    if contract.priority is not None:
        terms["priority"] = contract.priority
    return Declaration(
        service_id=contract.service_id,
        source=source,
        description=contract.description,
        terms=terms,
        sub_slos={name: SubDeclaration(sub.description, _slo_terms(sub)) for name, sub in contract.sub_slos.items()},
    )


def _slo_terms(slo: Any) -> Terms:
    """The terms of a schema.SLO; `latency: {of: ttft}` bounds the time to first token."""
    terms: Terms = {}
    if slo.latency is not None:
        bounded = "ttft" if slo.latency.of == "ttft" else "latency"
        for key, value in _said(slo.latency, "").items():
            if key in PERCENTILES:
                terms[f"{bounded}.{key}"] = value
            elif key == "max_jitter_ms":
                terms["latency.max_jitter_ms"] = value
    for milestone in ("ttft", "tpot"):
        if (bounds := getattr(slo, milestone)) is not None:
            terms.update(_said(bounds, f"{milestone}."))
    if slo.fallback is not None:
        terms.update(_said(slo.fallback, "fallback."))
    for key in ("availability", "precision_loss_allowed"):
        if (value := getattr(slo, key)) is not None:
            terms[key] = value
    return terms


def _said(model: BaseModel, prefix: str) -> Terms:
    return {f"{prefix}{key}": value for key, value in model if value is not None}


def _contradictions(slo: Any, path: str, source: str) -> list[str]:
    """What a schema.SLO says against itself."""
    problems = []
    for milestone in MILESTONES:
        bounds = getattr(slo, milestone)
        said = [] if bounds is None else [(key, value) for key, value in bounds if key in PERCENTILES and value]
        for (lower, lower_ms), (higher, higher_ms) in pairwise(said):
            if higher_ms < lower_ms:
                problems.append(
                    f"{source}: {path}.{milestone}.{higher}: {higher_ms:g} is less than {lower} {lower_ms:g}; "
                    "expected bounds that do not decrease from one percentile to a higher one"
                )
    if slo.latency is not None and slo.latency.of == "ttft" and slo.ttft is not None:
        problems.append(f"{source}: {path}.ttft: is given beside latency.of: ttft; expected one of the two")
    fallback = slo.fallback
    if fallback is not None and fallback.allowed is False and fallback.alternative_service is not None:
        problems.append(
            f"{source}: {path}.fallback.alternative_service: {shown(fallback.alternative_service)} is given but "
            "allowed is false; expected allowed: true, or no alternative_service"
        )
    return problems
