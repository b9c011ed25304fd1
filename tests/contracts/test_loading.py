from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superinfer.contracts import loading
from superinfer.contracts.contract import Bound
from superinfer.contracts.declaration import declare
from superinfer.contracts.errors import ContractError
from superinfer.contracts.schema import SLO, ContractDocument
from superinfer.contracts.short_form import SHORT_KEYS

EXAMPLES = Path(loading.__file__).parent / "examples"


def test_the_long_form_compiles_every_field() -> None:
    [contract] = loading.parse_contract_text(
        """
        service_id: hospital-core-emergency-triage
        description: emergency triage assistant
        slo:
          latency: {p999_ms: 300, p99_ms: 150, max_jitter_ms: 20}
          ttft: {p99_ms: 80}
          tpot: {p99_ms: 25}
          availability: 0.9999
          fallback: {allowed: false, alternative_service: null}
          precision_loss_allowed: false
        resource_constraints: {min_gpu_count: 2, preferred_gpu_type: H100-SXM5, memory_per_gpu_mb: 40000,
                               reserved_bandwidth_gb_per_s: 120}
        priority: 2
        """,
        "test",
    )
    assert contract.latency == (Bound(0.99, 150.0), Bound(0.999, 300.0))
    assert contract.ttft == (Bound(0.99, 80.0),)
    assert contract.tpot == (Bound(0.99, 25.0),)
    assert (contract.max_jitter_ms, contract.availability, contract.priority) == (20.0, 0.9999, 2.0)
    assert not contract.fallback_allowed
    assert not contract.precision_loss_allowed
    assert contract.resources.min_gpu_count == 2
    assert contract.resources.preferred_gpu_type == "H100-SXM5"
    assert contract.resources.memory_per_gpu_mb == 40000
    assert contract.resources.reserved_bandwidth_gb_per_s == 120


def test_short_and_long_form_compile_to_the_same_contract() -> None:
    short = "{service_id: r, latency_p95_ms: 200, availability: 0.9995, fallback_allowed: false, max_jitter_ms: 9}"
    long = """
        service_id: r
        slo: {latency: {p95_ms: 200, max_jitter_ms: 9}, availability: 0.9995, fallback: {allowed: false}}
    """
    assert loading.parse_contract_text(short, "s") == loading.parse_contract_text(long, "l")


def test_json_and_yaml_compile_to_the_same_contract() -> None:
    document = {"service_id": "r", "slo": {"latency": {"p95_ms": 200}}}
    from_json = loading.parse_contract_text(json.dumps(document), "body")
    assert from_json == loading.parse_contract_text("service_id: r\nslo: {latency: {p95_ms: 200}}", "body")


def test_latency_of_ttft_bounds_the_first_token() -> None:
    [contract] = loading.parse_contract_text("service_id: a\nslo: {latency: {p99_ms: 80, of: ttft}}", "test")
    assert contract.ttft == (Bound(0.99, 80.0),)
    assert contract.latency == ()


def test_documents_and_lists_in_one_file_all_count() -> None:
    text = "{service_id: a, slo: {}}\n---\n- {service_id: b, slo: {}}\n- {service_id: c, slo: {}}\n"
    assert [contract.service_id for contract in loading.parse_contract_text(text, "test")] == ["a", "b", "c"]


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfservice_id: a\nslo: {}")
    assert [contract.service_id for contract in loading.load_contracts(tmp_path)] == ["a"]


def test_hidden_and_other_files_of_a_directory_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("service_id: a\nslo: {}")
    (tmp_path / ".swap.yaml").write_text("half a contr")
    (tmp_path / "README.md").write_text("# contracts")
    assert [contract.service_id for contract in loading.load_contracts(tmp_path)] == ["a"]


def test_the_examples_compile_and_hold_what_their_names_promise() -> None:
    contracts = {contract.service_id: contract for contract in loading.load_contracts(EXAMPLES)}
    assert contracts["hospital-core-emergency-triage"].deadline_ms == 150
    assert contracts["report-gen"].fallback_allowed
    assert contracts["risk-scoring"].latency == (Bound(0.95, 200.0),)
    assert set(contracts["customer-assistant"].sub_slos) == {"intent-detection", "summary"}


def contract_error(call: Callable[[], object]) -> str:
    """The message of the ContractError that `call` raises, or nothing; any other exception goes through."""
    try:
        call()
    except ContractError as error:
        return str(error)
    return ""


def _fields(model: type) -> list[str]:
    return list(model.model_fields)  # type: ignore[attr-defined]


KEYS = st.sampled_from([*_fields(ContractDocument), *_fields(SLO), *SHORT_KEYS, "p99_ms", "p50_ms", "of"]) | st.text()
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.just(10**400)
    | st.binary(max_size=3)
    | st.dates()
    | st.sampled_from(["a", "a-b", "ttft"])
)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS | LEAVES.filter(lambda x: x is not None), inner, max_size=5)
    ),
    max_leaves=20,
)


@given(st.dictionaries(KEYS, ANYTHING, max_size=6) | ANYTHING)
def test_any_document_is_a_contract_or_a_contract_error_of_one_line(document: object) -> None:
    message = contract_error(lambda: declare(document, "test"))
    assert "\n" not in message
    assert message.startswith("test: ") or not message


@given(st.text() | st.text(alphabet="{}[]:,-&*!?|>'\"# \n\tabc019._", max_size=60))
def test_any_text_gives_contracts_or_a_contract_error_of_one_line(text: str) -> None:
    message = contract_error(lambda: loading.parse_contract_text(text, "test"))
    assert "\n" not in message
    assert message.startswith("test: ") or not message


BOUND = st.floats(min_value=0.1, max_value=1e6)


@given(st.lists(BOUND, min_size=5, max_size=5))
def test_bounds_are_kept_exactly_and_sorted_by_percentile(values: list[float]) -> None:
    names = ["p50_ms", "p90_ms", "p95_ms", "p99_ms", "p999_ms"]
    bounds = dict(zip(names, sorted(values), strict=True))
    document = {"service_id": "a", "slo": {"latency": dict(reversed(bounds.items()))}}
    [contract] = loading.parse_contract_text(json.dumps(document), "test")
    assert [bound.bound_ms for bound in contract.latency] == sorted(values)
    assert [bound.percentile for bound in contract.latency] == [0.5, 0.9, 0.95, 0.99, 0.999]


def test_the_size_limit_also_holds_for_text() -> None:
    with pytest.raises(ContractError, match="larger than 256 KiB"):
        loading.parse_contract_text("#" * (loading.MAX_BYTES + 1), "request body")
