"""The short form: `latency_p95_ms: 200` on one level instead of `slo: {latency: {p95_ms: 200}}`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from superinfer.contracts.schema import PERCENTILES, ContractDocument

Path = tuple[str, ...]

SHORT_KEYS: dict[str, Path] = {
    **{
        f"{milestone}_{percentile}": (milestone, percentile)
        for milestone in ("latency", "ttft", "tpot")
        for percentile in PERCENTILES
    },
    "max_jitter_ms": ("latency", "max_jitter_ms"),
    "availability": ("availability",),
    "fallback_allowed": ("fallback", "allowed"),
    "alternative_service": ("fallback", "alternative_service"),
    "precision_loss_allowed": ("precision_loss_allowed",),
}
"""Short key → where the same value stands in the long form, below `slo`."""


@dataclass(frozen=True)
class LongForm:
    """A contract in the long form, and where each moved value stands in what was written."""

    document: dict[str, Any]
    written_at: dict[Path, Path]


def to_long_form(document: Mapping[str, Any]) -> LongForm:
    """Move short keys of the contract (one without `slo`) and of its sub-tasks to their long places."""
    written_at: dict[Path, Path] = {}
    result = dict(document)
    if "slo" not in document and set(document) - set(ContractDocument.model_fields):
        rest, slo = _split(document, (), ("slo",), written_at)
        result = {**rest, "slo": slo}
    if isinstance(subs := document.get("sub_slos"), Mapping):
        result["sub_slos"] = {name: _long_sub(name, sub, written_at) for name, sub in subs.items()}
    return LongForm(result, written_at)


def _long_sub(name: str, sub: object, written_at: dict[Path, Path]) -> object:
    if not isinstance(sub, Mapping):
        return sub
    rest, slo = _split(sub, ("sub_slos", name), ("sub_slos", name), written_at)
    clash = next((key for key in slo if key in rest), None)
    if clash is None:
        return {**rest, **slo}
    # A milestone in both forms: left as written, so that the short key is reported as unknown beside it.
    return dict(sub)


def _split(
    document: Mapping[str, Any], written_below: Path, long_below: Path, written_at: dict[Path, Path]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What has no short key, and the nested form of what has one."""
    rest: dict[str, Any] = {}
    slo: dict[str, Any] = {}
    for key, value in document.items():
        if key not in SHORT_KEYS:
            rest[key] = value
            continue
        *parents, last = SHORT_KEYS[key]
        place = slo
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
        written_at[(*long_below, *SHORT_KEYS[key])] = (*written_below, key)
    return rest, slo
