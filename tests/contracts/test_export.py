"""Exports against the rules of the published formats, written out here by hand.

OpenSLO: README.md and schemas/v1 of github.com/OpenSLO/OpenSLO. Sloth: pkg/prometheus/api/v1 and
pkg/common/validation of github.com/slok/sloth.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from superinfer.contracts import loading
from superinfer.contracts.contract import Bound, SLOContract, best_effort_contract
from superinfer.contracts.loading import load_contracts, parse_contract_text
from superinfer.contracts.objectives import not_exported, object_name, objectives
from superinfer.contracts.openslo import to_openslo
from superinfer.contracts.sloth import to_sloth

SERIES = r'superinfer_slo_fulfillment_rate\{contract_id="[a-z0-9-]+(/[a-z0-9-]+)?",quantile="0\.\d+"\}'
DNS_LABEL = re.compile("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
SLOTH_NAME = re.compile("[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
LABEL_KEY = re.compile("[a-zA-Z_][a-zA-Z0-9_]*")

CONTRACTS = [
    *load_contracts(Path(loading.__file__).parent / "examples"),
    *parse_contract_text(
        "service_id: " + "very-" * 24 + "long\ndescription: " + "x" * 2000 + "\nslo: {latency: {p999_ms: 5}}\n"
        "sub_slos: {ask: {latency_p50_ms: 1}}\n---\n{service_id: -odd-, tpot_p90_ms: 0.5}\n---\n"
        "service_id: a\nslo: {}\nsub_slos: {b: {latency_p99_ms: 1}}\n---\n{service_id: a-b, latency_p99_ms: 1}",
        "test",
    ),
    best_effort_contract(),
]


def keys(mapping: dict[str, Any], required: set[str], optional: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    assert required <= mapping.keys() <= required | optional, mapping


def check_openslo(text: str) -> list[dict[str, Any]]:
    documents = list(yaml.safe_load_all(text))
    for document in documents:
        keys(document, {"apiVersion", "kind", "metadata", "spec"})
        assert document["apiVersion"] == "openslo/v1"
        keys(document["metadata"], {"name"}, {"displayName", "labels", "annotations"})
        assert DNS_LABEL.fullmatch(document["metadata"]["name"])
        assert document["metadata"]["displayName"]
        assert len(document["spec"].get("description", "")) <= 1050
        {"Service": check_openslo_service, "SLO": check_openslo_slo}[document["kind"]](document["spec"])
    named = [(document["kind"], document["metadata"]["name"]) for document in documents]
    assert len(set(named)) == len(named)
    services = {name for kind, name in named if kind == "Service"}
    assert {document["spec"]["service"] for document in documents if document["kind"] == "SLO"} == services
    return documents


def check_openslo_service(spec: dict[str, Any]) -> None:
    keys(spec, set(), {"description"})


def check_openslo_slo(spec: dict[str, Any]) -> None:
    keys(spec, {"service", "budgetingMethod", "objectives", "indicator"}, {"description", "timeWindow"})
    assert spec["budgetingMethod"] in {"Occurrences", "Timeslices", "RatioTimeslices"}
    [window] = spec["timeWindow"]
    assert window["isRolling"] is True
    assert re.fullmatch("[1-9][0-9]*[mhdwMQY]", window["duration"])
    keys(spec["indicator"], {"metadata", "spec"})
    assert DNS_LABEL.fullmatch(spec["indicator"]["metadata"]["name"])
    keys(spec["indicator"]["spec"], {"ratioMetric"})
    ratio = spec["indicator"]["spec"]["ratioMetric"]
    keys(ratio, {"counter", "good", "total"})
    assert ratio["counter"] is False
    for part, function in (("good", "sum"), ("total", "count")):
        keys(ratio[part], {"metricSource"})
        keys(ratio[part]["metricSource"], {"type", "spec"})
        assert re.fullmatch(rf"{function}\({SERIES}\)", ratio[part]["metricSource"]["spec"]["query"])
    for objective in spec["objectives"]:
        keys(objective, {"target"}, {"displayName"})
        assert 0 <= objective["target"] < 1


def check_sloth(text: str) -> list[dict[str, Any]]:
    documents = list(yaml.safe_load_all(text))
    ids = []
    for part in text.split("\n---\n"):
        assert re.search(r"""(?m)^version: +['"]?prometheus/v1['"]?\r?\n? *$""", part)
    for document in documents:
        keys(document, {"version", "service", "slos"}, {"labels"})
        assert SLOTH_NAME.fullmatch(document["service"])
        assert document["slos"]
        for slo in document["slos"]:
            keys(slo, {"name", "objective", "sli", "alerting"}, {"description", "labels"})
            ids.append(f"{document['service']}-{slo['name']}")
            assert SLOTH_NAME.fullmatch(slo["name"])
            assert 0 < slo["objective"] <= 100
            keys(slo["sli"], {"raw"})
            keys(slo["sli"]["raw"], {"error_ratio_query"})
            query = rf"1 - avg\(avg_over_time\({SERIES}\[\{{\{{\.window\}}\}}\]\)\)"
            assert re.fullmatch(query, slo["sli"]["raw"]["error_ratio_query"])
            alerting = slo["alerting"]
            keys(alerting, {"name"}, {"labels", "annotations", "page_alert", "ticket_alert"})
            assert alerting["name"]
            for labels in (slo["labels"], alerting["annotations"], *(
                alerting[alert]["labels"] for alert in ("page_alert", "ticket_alert")
            )):  # fmt: skip
                assert all(
                    LABEL_KEY.fullmatch(key) and isinstance(value, str) and value for key, value in labels.items()
                )
    assert len(set(ids)) == len(ids)
    return documents


def test_openslo_documents_keep_the_rules_of_openslo_v1() -> None:
    documents = check_openslo(to_openslo(CONTRACTS))
    promised = [objective for contract in CONTRACTS for objective in objectives(contract)]
    targets = [document["spec"]["objectives"][0]["target"] for document in documents if document["kind"] == "SLO"]
    assert targets == [objective.percentile for objective in promised]


def test_sloth_specs_keep_the_rules_of_prometheus_v1() -> None:
    documents = check_sloth(to_sloth(CONTRACTS))
    promised = [objective for contract in CONTRACTS for objective in objectives(contract)]
    assert [slo["objective"] for document in documents for slo in document["slos"]] == [
        objective.percent for objective in promised
    ]


def test_each_percentile_is_one_objective_over_all_milestones() -> None:
    [contract] = parse_contract_text(
        "service_id: a\nslo: {latency: {p50_ms: 10, p99_ms: 150}, ttft: {p99_ms: 80}}\n"
        "sub_slos: {ask: {tpot_p999_ms: 5}}",
        "test",
    )
    assert [(one.contract_id, one.label, one.percent, one.bounds) for one in objectives(contract)] == [
        ("a", "p50", 50.0, (("latency", 10.0),)),
        ("a", "p99", 99.0, (("latency", 150.0), ("ttft", 80.0))),
        ("a/ask", "p50", 50.0, (("latency", 10.0),)),
        ("a/ask", "p99", 99.0, (("latency", 150.0), ("ttft", 80.0))),
        ("a/ask", "p999", 99.9, (("tpot", 5.0),)),
    ]
    slos = yaml.safe_load(to_sloth([contract]))["slos"]
    assert [slo["name"] for slo in slos] == ["p50", "p99", "ask_p50", "ask_p99", "ask_p999"]
    assert slos[1]["description"] == "99 % of the requests of a: latency at most 150 ms, ttft at most 80 ms"
    assert slos[4]["sli"]["raw"]["error_ratio_query"] == (
        '1 - avg(avg_over_time(superinfer_slo_fulfillment_rate{contract_id="a/ask",quantile="0.999"}[{{.window}}]))'
    )


def test_what_promises_no_share_is_left_out_and_named() -> None:
    contract = SLOContract(service_id="a", availability=0.999, max_jitter_ms=5.0)
    assert (to_openslo([contract]), to_sloth([contract])) == ("", "")
    assert not_exported(contract) == ["a: availability", "a: max_jitter_ms"]


@pytest.mark.parametrize(
    ("contract_id", "name"), [("a-b", "a-b-p99"), ("a/b", "a-b-c14cddc0-p99"), ("-a", "a-"), ("---", "")]
)
def test_an_id_that_is_no_name_is_told_apart_by_a_digest(contract_id: str, name: str) -> None:
    made = object_name(contract_id, "-p99")
    assert DNS_LABEL.fullmatch(made)
    assert made.startswith(name)


@given(
    st.lists(st.text("ab/-", min_size=1, max_size=6) | st.integers(50, 128).map("a".__mul__), unique=True, max_size=20)
)
def test_different_ids_have_different_names(contract_ids: list[str]) -> None:
    assert len({object_name(contract_id, "-p99") for contract_id in contract_ids}) == len(contract_ids)


@settings(max_examples=25)
@given(
    st.lists(st.sampled_from([0.5, 0.9, 0.95, 0.99, 0.999]), unique=True, max_size=5),
    st.floats(0.001, 1e9),
    st.from_regex("[a-z0-9-]{1,128}", fullmatch=True),
)
def test_any_contract_is_exported_by_the_rules(percentiles: list[float], bound_ms: float, service_id: str) -> None:
    sub = SLOContract(service_id=f"{service_id}/{service_id}", tpot=(Bound(0.5, bound_ms),))
    contract = SLOContract(
        service_id=service_id,
        latency=tuple(Bound(percentile, bound_ms) for percentile in sorted(percentiles)),
        sub_slos={service_id: sub},
    )
    check_openslo(to_openslo([contract]))
    check_sloth(to_sloth([contract]))
