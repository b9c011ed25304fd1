"""Bounds that a request states in its headers: which stand before which, what the engine learns, who may."""

from __future__ import annotations

import pytest

from superinfer.cli.serve.api_keys import KeyHolder, unbound
from superinfer.cli.serve.contract_book import ContractBook
from superinfer.cli.serve.header_contracts import MOST_KEPT
from superinfer.contracts.contract import best_effort_contract
from superinfer.contracts.registry import ContractRegistry
from superinfer.profiler.latency_model import LatencyModel

pytestmark = pytest.mark.anyio

BODY = {"model": "tiny", "prompt": "a"}


async def post(client, **headers):
    return await client.post(
        "/v1/completions", json=BODY, headers={name.replace("_", "-"): text for name, text in headers.items()}
    )


async def test_a_named_contract_stands_before_llm_ds_headers_and_those_before_our_own(client, engine):
    ours = {"x_slo_ttft_ms": "300", "x_slo_tpot_ms": "40"}
    llm_d = {"x_llm_d_slo_ttft_ms": "200"}
    answer = await post(client, x_slo_contract_id="triage", **llm_d, **ours)
    assert answer.headers["x-slo-contract-id"] == "triage"
    assert not engine.contracts
    assert (await post(client, **llm_d, **ours)).headers["x-slo-contract-id"] == "~ttft-200"
    assert (await post(client, **ours)).headers["x-slo-contract-id"] == "~ttft-300-tpot-40"
    assert (await post(client)).headers["x-slo-contract-id"] == "best-effort"
    assert [(one.ttft_deadline_ms, one.tpot_deadline_ms) for one in engine.contracts] == [(200, None), (300, 40)]
    assert [request.contract_id for request in engine.requests][1:3] == ["~ttft-200", "~ttft-300-tpot-40"]


async def test_the_engine_learns_of_bounds_once_and_forgets_those_used_longest_ago(client, engine):
    for number in range(1, MOST_KEPT + 1):
        assert (await post(client, x_slo_ttft_ms=str(number))).status_code == 200
    await post(client, x_slo_ttft_ms="1.0")
    assert len(engine.contracts) == MOST_KEPT
    assert not engine.retired
    await post(client, x_slo_ttft_ms="0.5")
    assert engine.retired == ["~ttft-2"]


@pytest.mark.parametrize("text", ["soon", "0", "-5", "nan", "inf", "1e12"])
async def test_a_bound_that_is_no_time_is_refused_by_name(client, engine, text):
    answer = await post(client, x_slo_tpot_ms=text)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "x-slo-tpot-ms")
    assert text in answer.json()["error"]["message"]
    assert not engine.requests


async def test_bounds_below_the_models_own_time_are_refused_unless_let_in(make_client, engine):
    registry = ContractRegistry()
    registry.register(best_effort_contract())
    model = LatencyModel(0.01, [(1, 0.0), (2, 0.0)], 0.0, 0.0, 0.0, 0.0, 0.0)
    strict = make_client(book=ContractBook(registry, latency_model=model))
    assert (await post(strict, x_slo_ttft_ms="9")).json()["error"]["code"] == "unattainable_contract"
    assert not engine.contracts
    lax = make_client(book=ContractBook(registry, latency_model=model, allow_unattainable=True))
    assert (await post(lax, x_slo_ttft_ms="9")).status_code == 200


async def test_a_key_that_is_bound_to_contracts_may_not_state_bounds(make_client, engine):
    bound = KeyHolder(unbound("sk-bound").digest, frozenset({"triage"}))
    client = make_client(key_holders=(bound, unbound("sk-all")))
    refused = await post(client, authorization="Bearer sk-bound", x_slo_ttft_ms="300")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "contract_not_allowed")
    assert not engine.requests
    assert (await post(client, authorization="Bearer sk-all", x_slo_ttft_ms="300")).status_code == 200
