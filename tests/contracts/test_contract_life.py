"""Contracts are updated and retired: what changes with them, and what stands in the way."""

from __future__ import annotations

import pytest

from superinfer.contracts.contract import BEST_EFFORT_ID, best_effort_contract
from superinfer.contracts.declaration import Declaration
from superinfer.contracts.errors import ContractConflictError, UnknownContractError
from superinfer.contracts.loading import parse_declarations
from superinfer.contracts.problems import InvalidContractError
from superinfer.contracts.registry import ContractRegistry


def declared(text: str) -> Declaration:
    return parse_declarations(text, "test")[0]


def registry_of(*texts: str) -> ContractRegistry:
    registry = ContractRegistry()
    registry.register([best_effort_contract(), *map(declared, texts)])
    return registry


def versions(registry: ContractRegistry) -> dict[str, int]:
    return {
        contract.service_id: contract.version for contract in registry.list() if contract.service_id != "best-effort"
    }


def test_an_update_is_a_new_version_and_reaches_the_children() -> None:
    registry = registry_of(
        "{service_id: a, latency_p99_ms: 100}", "{service_id: a-b, tpot_p99_ms: 9}", "{service_id: c, ttft_p50_ms: 1}"
    )
    change = registry.plan_update(declared("{service_id: a, latency_p99_ms: 50}"))
    assert versions(registry) == {"a": 1, "a-b": 1, "c": 1}
    registry.apply(change)
    assert [contract.service_id for contract in change.contracts] == ["a", "a-b"]
    assert versions(registry) == {"a": 2, "a-b": 2, "c": 1}
    assert registry.get("a-b").deadline_ms == 50


def test_an_update_that_changes_no_term_is_no_new_version() -> None:
    registry = registry_of("{service_id: a, latency_p99_ms: 100}")
    change = registry.plan_update(declared("service_id: a\nslo: {latency: {p99_ms: 100.0}}"))
    registry.apply(change)
    assert (change.contracts, versions(registry)) == ([], {"a": 1})


def test_an_update_drops_the_sub_tasks_that_it_does_not_name() -> None:
    registry = registry_of("service_id: a\nslo: {}\nsub_slos: {ask: {latency_p99_ms: 5}, tell: {latency_p99_ms: 6}}")
    registry.apply(registry.plan_update(declared("service_id: a\nslo: {}\nsub_slos: {tell: {latency_p99_ms: 6}}")))
    assert registry.resolve("a/tell").version == 2
    with pytest.raises(UnknownContractError):
        registry.resolve("a/ask")


def test_an_update_that_breaks_another_contract_changes_nothing() -> None:
    registry = registry_of("{service_id: a, latency_p99_ms: 100}")
    broken = "{service_id: a, latency_p99_ms: 9, fallback_allowed: true, alternative_service: nobody}"
    with pytest.raises(InvalidContractError, match="nobody"):
        registry.plan_update(declared(broken))
    assert registry.get("a").deadline_ms == 100


def test_a_retired_contract_is_unknown_and_its_id_free() -> None:
    registry = registry_of("{service_id: a, latency_p99_ms: 100}")
    change = registry.plan_retire("a")
    registry.apply(change)
    assert (change.retired, change.contracts) == (("a",), [])
    with pytest.raises(UnknownContractError):
        registry.get("a")
    registry.register(declared("{service_id: a, latency_p99_ms: 70}"))
    assert versions(registry) == {"a": 2}


def test_a_parent_or_an_alternative_is_not_retired_while_others_depend_on_it() -> None:
    registry = registry_of(
        "{service_id: a, latency_p99_ms: 100}",
        "{service_id: a-b, tpot_p99_ms: 9}",
        "{service_id: c, latency_p99_ms: 9, fallback_allowed: true, alternative_service: a-b}",
    )
    with pytest.raises(ContractConflictError, match=r"'a' is the parent of a-b; .*first"):
        registry.plan_retire("a")
    with pytest.raises(ContractConflictError, match="'a-b' is the alternative_service of c"):
        registry.plan_retire("a-b")
    for service_id in ("c", "a-b", "a"):
        registry.apply(registry.plan_retire(service_id))
    assert versions(registry) == {}


def test_the_contract_of_requests_that_name_none_stays_as_it_is() -> None:
    registry = registry_of()
    with pytest.raises(ContractConflictError, match="cannot be changed"):
        registry.plan_retire(BEST_EFFORT_ID)
    with pytest.raises(ContractConflictError, match="cannot be changed"):
        registry.plan_update(declared("{service_id: best-effort, latency_p99_ms: 5}"))


def test_what_is_not_registered_can_be_neither_updated_nor_retired() -> None:
    registry = registry_of("{service_id: triage, latency_p99_ms: 100}")
    with pytest.raises(UnknownContractError, match="did you mean triage"):
        registry.plan_retire("triag")
    with pytest.raises(UnknownContractError):
        registry.plan_update(declared("{service_id: other, latency_p99_ms: 5}"))
