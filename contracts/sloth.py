"""Contracts as Sloth prometheus/v1 specs (https://sloth.dev), from which Sloth makes recording and alerting rules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from superinfer.contracts.contract import SLOContract
from superinfer.contracts.objectives import Objective, object_name, objectives

ALERT_NAME = "SuperInferContractBudgetBurns"


def to_sloth(contracts: Iterable[SLOContract]) -> str:
    """A YAML stream with a spec for each service; empty where nothing is bounded."""
    documents = []
    for contract in contracts:
        if promised := list(objectives(contract)):
            documents.append(
                {
                    "version": "prometheus/v1",
                    "service": object_name(contract.service_id),
                    "slos": [_slo(objective) for objective in promised],
                }
            )
    return yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, width=1000) if documents else ""


def _slo(objective: Objective) -> dict[str, Any]:
    return {
        "name": _name(objective),
        "objective": objective.percent,
        "description": objective.text,
        "labels": {"contract_id": objective.contract_id, "quantile": f"{objective.percentile:g}"},
        "sli": {"raw": {"error_ratio_query": f"1 - avg(avg_over_time({objective.series}[{{{{.window}}}}]))"}},
        "alerting": {
            "name": ALERT_NAME,
            "annotations": {"summary": f"the error budget of {objective.contract_id} burns too fast: {objective.text}"},
            "page_alert": {"labels": {"severity": "critical"}},
            "ticket_alert": {"labels": {"severity": "warning"}},
        },
    }


def _name(objective: Objective) -> str:
    """Unique among all services behind `<service>-`, which is how Sloth makes an id: no service id holds a '_'."""
    sub = objective.contract_id.removeprefix(objective.service_id).lstrip("/")
    return f"{object_name(sub)}_{objective.label}" if sub else objective.label
