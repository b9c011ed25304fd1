"""A declaration as the document that says it, in the long form of contract files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from superinfer.contracts.declaration import Declaration, Term

OUTSIDE_SLO = ("priority", "resource_constraints")


def to_document(declaration: Declaration) -> dict[str, Any]:
    """What `declare` reads back to the same declaration."""
    terms = declaration.terms
    outside = {path: value for path, value in terms.items() if path.partition(".")[0] in OUTSIDE_SLO}
    inside = {path: value for path, value in terms.items() if path not in outside}
    document = {"service_id": declaration.service_id, "description": declaration.description, "slo": _nested(inside)}
    if declaration.sub_slos:
        document["sub_slos"] = {
            name: {"description": sub.description, **_nested(sub.terms)} for name, sub in declaration.sub_slos.items()
        }
    return {**document, **_nested(outside)}


def _nested(terms: Mapping[str, Term]) -> dict[str, Any]:
    """`{"latency.p99_ms": 5}` as `{"latency": {"p99_ms": 5}}`."""
    result: dict[str, Any] = {}
    for path, value in terms.items():
        *parents, last = path.split(".")
        place = result
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return result
