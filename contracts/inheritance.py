"""What a child gets from its parent: all it does not say, and of what both say the stricter as the hard one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from superinfer.contracts.declaration import MILESTONES, Term, Terms
from superinfer.contracts.schema import PERCENTILES

HIGHER_IS_STRICTER = {
    "availability",
    "resource_constraints.min_gpu_count",
    "resource_constraints.memory_per_gpu_mb",
    "resource_constraints.reserved_bandwidth_gb_per_s",
}
FALSE_IS_STRICTER = {"fallback.allowed", "precision_loss_allowed"}


@dataclass(frozen=True)
class Origin:
    """Where a term of an effective contract comes from.

    `source` is the id of the contract that said it, or the key of the higher percentile that implies it.
    `declared` is the contract's own laxer value where a stricter one took its place.
    """

    kind: Literal["own", "inherited", "tightened"]
    source: str
    declared: Term | None = None


@dataclass(frozen=True)
class EffectiveTerms:
    """The terms that hold, and for each where it comes from."""

    terms: Terms
    origins: dict[str, Origin]


def inherit(own_id: str, own: Terms, parent_id: str | None, parent: Mapping[str, Term]) -> EffectiveTerms:
    """Merge a child's own terms with its parent's effective ones."""
    terms: Terms = dict(own)
    origins = {key: Origin("own", own_id) for key in own}
    for key, value in parent.items() if parent_id is not None else ():
        assert parent_id is not None
        if key not in own:
            terms[key] = value
            origins[key] = Origin("inherited", parent_id)
        elif is_stricter(key, value, own[key]):
            terms[key] = value
            origins[key] = Origin("tightened", parent_id, declared=own[key])
    _imply_lower_percentiles(terms, origins)
    _drop_forbidden_alternative(terms, origins)
    return EffectiveTerms(terms, origins)


def is_stricter(key: str, value: Term, than: Term) -> bool:
    """True where `value` of the term `key` asks more of the service than `than`."""
    if isinstance(value, str) or isinstance(than, str) or key == "priority":
        return False
    if key in HIGHER_IS_STRICTER:
        return value > than
    if key in FALSE_IS_STRICTER:
        return value is False and than is True
    return value < than


def _imply_lower_percentiles(terms: Terms, origins: dict[str, Origin]) -> None:
    """Of two bounds from two contracts the one at the higher percentile also holds for the lower one."""
    for milestone in MILESTONES:
        keys = [key for name in PERCENTILES if (key := f"{milestone}.{name}") in terms]
        for higher, lower in zip(keys[::-1], keys[-2::-1], strict=False):
            if is_stricter(lower, terms[higher], terms[lower]):
                origins[lower] = Origin("tightened", higher, declared=terms[lower])
                terms[lower] = terms[higher]


def _drop_forbidden_alternative(terms: Terms, origins: dict[str, Origin]) -> None:
    """Where the hard term is that there is no fallback, an alternative from the other contract falls away."""
    if terms.get("fallback.allowed") is False:
        terms.pop("fallback.alternative_service", None)
        origins.pop("fallback.alternative_service", None)
