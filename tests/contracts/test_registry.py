from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superinfer.contracts.contract import Bound, SLOContract
from superinfer.contracts.declaration import Declaration
from superinfer.contracts.errors import ContractConflictError, ContractError, UnknownContractError
from superinfer.contracts.loading import parse_contract_text, parse_declarations
from superinfer.contracts.naming import is_valid_id, parent_id
from superinfer.contracts.registry import ContractRegistry

CORE = """
service_id: hospital-core
slo:
  latency: {p95_ms: 300, p99_ms: 500}
  availability: 0.9995
  fallback: {allowed: true, alternative_service: report-gen}
  precision_loss_allowed: false
resource_constraints: {min_gpu_count: 2}
priority: 3
"""
TRIAGE = """
service_id: hospital-core-triage
slo:
  latency: {p99_ms: 150, max_jitter_ms: 20}
  availability: 0.99
  fallback: {allowed: false}
  precision_loss_allowed: true
"""
REPORTS = "{service_id: report-gen, latency_p99_ms: 2000}"


def registry_of(*texts: str) -> ContractRegistry:
    registry = ContractRegistry()
    registry.register([declaration for text in texts for declaration in parse_declarations(text, "test")])
    return registry


def test_a_child_inherits_what_it_does_not_say() -> None:
    child = registry_of(CORE, TRIAGE, REPORTS).get("hospital-core-triage")
    assert child.priority == 3
    assert child.resources.min_gpu_count == 2


def test_of_two_bounds_the_stricter_is_hard_and_the_origin_says_so() -> None:
    entry = registry_of(CORE, TRIAGE, REPORTS).compiled("hospital-core-triage")
    assert entry.parent_id == "hospital-core"
    assert entry.contract.availability == 0.9995
    assert entry.contract.precision_loss_allowed is False
    assert entry.contract.deadline_ms == 150
    tightened = entry.origins["availability"]
    assert (tightened.kind, tightened.source, tightened.declared) == ("tightened", "hospital-core", 0.99)
    assert entry.origins["priority"].kind == "inherited"
    assert entry.origins["latency.p99_ms"].kind == "own"


def test_a_stricter_higher_percentile_also_bounds_the_lower_one_that_was_inherited() -> None:
    child = registry_of(CORE, TRIAGE, REPORTS).get("hospital-core-triage")
    assert child.latency == (Bound(0.95, 150.0), Bound(0.99, 150.0))


def test_a_child_without_fallback_does_not_inherit_the_alternative() -> None:
    child = registry_of(CORE, TRIAGE, REPORTS).get("hospital-core-triage")
    assert not child.fallback_allowed
    assert child.alternative_service is None


def test_inheritance_goes_through_all_generations_in_any_order() -> None:
    texts = [
        "{service_id: a-b-c, latency_p50_ms: 5}",
        "{service_id: a, availability: 0.9}",
        "{service_id: a-b, tpot_p99_ms: 7}",
    ]
    for order in (texts, texts[::-1]):
        grandchild = registry_of(*order).get("a-b-c")
        assert (grandchild.availability, grandchild.tpot_deadline_ms, grandchild.deadline_ms) == (0.9, 7, 5)


def test_a_parent_that_comes_later_changes_its_children_as_a_new_version() -> None:
    registry = registry_of("{service_id: a-b, latency_p99_ms: 100}")
    assert registry.get("a-b").version == 1
    changed = registry.register(parse_declarations("{service_id: a, latency_p99_ms: 50}", "test"))
    assert {contract.service_id: contract.version for contract in changed} == {"a": 1, "a-b": 2}
    assert registry.get("a-b").deadline_ms == 50


def test_registering_something_unrelated_changes_nobody_else() -> None:
    registry = registry_of(REPORTS)
    changed = registry.register(parse_contract_text("{service_id: other, latency_p99_ms: 1}", "test"))
    assert [contract.service_id for contract in changed] == ["other"]


def test_the_same_id_twice_is_a_conflict_and_nothing_of_the_batch_stays() -> None:
    registry = registry_of(REPORTS)
    batch = parse_declarations("- {service_id: new, latency_p99_ms: 1}\n- " + REPORTS, "body")
    with pytest.raises(ContractConflictError, match="'report-gen' is registered twice"):
        registry.register(batch)
    assert [contract.service_id for contract in registry.list()] == ["report-gen"]


def test_an_alternative_may_be_registered_earlier_or_in_the_same_batch_but_must_exist() -> None:
    text = "{service_id: a, latency_p99_ms: 9, fallback_allowed: true, alternative_service: report-gen}"
    assert registry_of(text, REPORTS).get("a").alternative_service == "report-gen"
    registry = registry_of(REPORTS)
    registry.register(parse_contract_text(text, "body"))
    empty = ContractRegistry()
    with pytest.raises(ContractError, match=r'alternative_service: "report-gen" does not exist'):
        empty.register(parse_contract_text(text, "body"))
    assert empty.list() == []


def test_a_request_names_a_service_or_one_of_its_sub_tasks() -> None:
    registry = registry_of(
        "service_id: a\nslo: {fallback: {allowed: true}}\n"
        "sub_slos: {ask: {latency_p99_ms: 40, fallback_allowed: false}}"
    )
    assert registry.resolve("a").service_id == "a"
    ask = registry.resolve("a/ask")
    assert (ask.service_id, ask.deadline_ms, ask.fallback_allowed) == ("a/ask", 40, False)
    with pytest.raises(UnknownContractError, match="sub-tasks of a: ask"):
        registry.resolve("a/tell")
    with pytest.raises(UnknownContractError, match='contract "b" is not registered'):
        registry.resolve("b")


def test_a_sub_task_cannot_be_laxer_than_its_service() -> None:
    registry = registry_of("service_id: a\nslo: {latency: {p99_ms: 100}}\nsub_slos: {ask: {latency_p99_ms: 400}}")
    assert registry.resolve("a/ask").deadline_ms == 100
    assert registry.compiled("a").origins["sub_slos.ask.latency.p99_ms"].kind == "tightened"


def test_a_compiled_contract_registers_to_an_equal_one() -> None:
    contracts = parse_contract_text(TRIAGE + "sub_slos: {ask: {latency_p99_ms: 40}}\n", "test")
    registry = ContractRegistry()
    assert registry.register(contracts) == contracts
    assert registry.register(SLOContract(service_id="plain")) == [SLOContract(service_id="plain")]


@pytest.mark.parametrize(
    ("service_id", "registered", "parent"),
    [
        ("hospital-core-emergency-triage", {"hospital", "hospital-core"}, "hospital-core"),
        ("hospital-core", {"hospital-core"}, None),
        ("hospitality", {"hospital"}, None),
        ("a--b", {"a", "a-"}, "a-"),
    ],
)
def test_the_parent_is_the_longest_id_before_a_dash(service_id: str, registered: set[str], parent: str | None) -> None:
    assert parent_id(service_id, registered) == parent


@given(st.text(max_size=6))
def test_valid_ids_are_what_the_schema_takes(text: str) -> None:
    declared: list[Declaration] = []
    try:
        from superinfer.contracts.declaration import declare

        declared.append(declare({"service_id": text, "slo": {}}, "test"))
    except ContractError:
        pass
    assert bool(declared) == is_valid_id(text)


SLOS = st.fixed_dictionaries(
    {},
    optional={
        "latency_p95_ms": st.sampled_from([10, 20, 30]),
        "latency_p99_ms": st.sampled_from([30, 40, 50]),
        "availability": st.sampled_from([0.9, 0.99, 0.999]),
        "fallback_allowed": st.booleans(),
        "precision_loss_allowed": st.booleans(),
    },
)


@given(SLOS.filter(bool), SLOS.filter(bool))
def test_a_child_is_never_laxer_than_its_parent_or_itself(parent: dict[str, object], child: dict[str, object]) -> None:
    import json

    alone = parse_contract_text(json.dumps({"service_id": "a-b", **child}), "test")[0]
    registry = registry_of(json.dumps({"service_id": "a", **parent}), json.dumps({"service_id": "a-b", **child}))
    above, below = registry.get("a"), registry.get("a-b")
    for other in (above, alone):
        for bound in other.latency:
            held = [own.bound_ms for own in below.latency if own.percentile >= bound.percentile]
            assert held
            assert min(held) <= bound.bound_ms
        assert (below.availability or 0) >= (other.availability or 0)
    bounds = [bound.bound_ms for bound in below.latency]
    assert bounds == sorted(bounds)
    if parent.get("fallback_allowed") is False or child.get("fallback_allowed") is False:
        assert not below.fallback_allowed
