"""Contracts as OpenSLO v1 documents (https://github.com/OpenSLO/OpenSLO): a Service, and an SLO for each percentile."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from superinfer.contracts.contract import SLOContract
from superinfer.contracts.objectives import WINDOW, Objective, object_name, objectives

MAX_DESCRIPTION_LENGTH = 1050


def to_openslo(contracts: Iterable[SLOContract]) -> str:
    """A YAML stream; empty where nothing is bounded."""
    documents: list[dict[str, Any]] = []
    for contract in contracts:
        if promised := list(objectives(contract)):
            documents += [_service(contract), *(_slo(objective) for objective in promised)]
    return yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, width=1000) if documents else ""


def _service(contract: SLOContract) -> dict[str, Any]:
    return {
        "apiVersion": "openslo/v1",
        "kind": "Service",
        "metadata": {"name": object_name(contract.service_id), "displayName": contract.service_id},
        "spec": {"description": _cut(contract.description)},
    }


def _slo(objective: Objective) -> dict[str, Any]:
    name = object_name(objective.contract_id, f"-{objective.label}")
    # The server tells a share. Summed and counted it is a ratio metric over any number of servers; OpenSLO's `raw`,
    # made for ready shares, is missing from the schema that its tools check against.
    ratio = {
        "counter": False,
        "good": _prometheus(f"sum({objective.series})"),
        "total": _prometheus(f"count({objective.series})"),
    }
    return {
        "apiVersion": "openslo/v1",
        "kind": "SLO",
        "metadata": {"name": name, "displayName": f"{objective.contract_id} {objective.label}"},
        "spec": {
            "description": _cut(". ".join(filter(None, (objective.text, objective.description)))),
            "service": object_name(objective.service_id),
            "indicator": {"metadata": {"name": name}, "spec": {"ratioMetric": ratio}},
            "timeWindow": [{"duration": WINDOW, "isRolling": True}],
            "budgetingMethod": "Occurrences",
            "objectives": [{"displayName": objective.text, "target": objective.percentile}],
        },
    }


def _prometheus(query: str) -> dict[str, Any]:
    return {"metricSource": {"type": "Prometheus", "spec": {"query": query}}}


def _cut(text: str) -> str:
    return text if len(text) <= MAX_DESCRIPTION_LENGTH else text[: MAX_DESCRIPTION_LENGTH - 1] + "…"
