from __future__ import annotations

import json

import pytest

from superinfer.executor.messages import ContractStats
from superinfer.scheduler.budgets import BudgetState

pytestmark = pytest.mark.anyio

CHAT = """
service_id: chat
slo:
  latency: {p99_ms: 900}
  ttft: {p95_ms: 100}
"""
SHORT = {"service_id": "risk-scoring", "latency_p95_ms": 200, "availability": 0.9995, "fallback_allowed": False}


async def test_a_contract_in_yaml_is_registered_and_can_be_used_at_once(client, engine):
    answer = await client.post("/v1/contracts", content=CHAT)
    assert answer.status_code == 200
    assert answer.json()["status"] == "success"
    assert answer.json()["contract_id"] == "chat"
    assert [contract.service_id for contract in engine.contracts] == ["chat"]
    used = await client.post(
        "/v1/completions", json={"model": "tiny", "prompt": "a"}, headers={"x-slo-contract-id": "chat"}
    )
    assert used.status_code == 200


async def test_a_contract_in_json_is_the_same(client, engine):
    assert (await client.post("/v1/contracts", json=SHORT)).json()["contract_id"] == "risk-scoring"
    assert engine.contracts[0].latency[0].bound_ms == 200


async def test_an_id_that_is_taken_is_a_conflict(client, engine):
    await client.post("/v1/contracts", content=CHAT)
    answer = await client.post("/v1/contracts", content=CHAT)
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "contract_conflict"
    assert "chat" in answer.json()["error"]["message"]
    assert len(engine.contracts) == 1


async def test_a_batch_with_a_taken_id_registers_nothing(client, engine):
    batch = CHAT + "---\n" + json.dumps({**SHORT, "service_id": "triage"})
    assert (await client.post("/v1/contracts", content=batch)).status_code == 409
    assert not engine.contracts
    assert (await client.get("/v1/contracts/chat")).status_code == 404


async def test_a_batch_is_registered_as_a_whole(client, engine):
    answer = await client.post("/v1/contracts", content=CHAT + "---\n" + json.dumps(SHORT))
    assert answer.json()["contract_ids"] == ["chat", "risk-scoring"]
    assert [contract.service_id for contract in engine.contracts] == ["chat", "risk-scoring"]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("service_id: has space\nslo: {latency: {p99_ms: 10}}", "service_id"),
        ("service_id: a\nslo: {latency: {p99_ms: -1}}", "slo.latency.p99_ms"),
        ("service_id: a\nslo: {latncy: {p99_ms: 10}}", "latncy"),
        ("service_id: [", "body"),
        ("", "body"),
        ("just text", "body"),
        (b"\xff\xfe\x00", "UTF-8"),
    ],
)
async def test_a_broken_contract_gets_one_clear_error(client, engine, body, named):
    answer = await client.post("/v1/contracts", content=body)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["code"] == "invalid_contract"
    assert named in error["message"]
    assert not engine.contracts


async def test_the_list_shows_live_fulfilment(client, engine):
    engine.contract_stats = [
        ContractStats(service_id="triage", finished=8, met=6, running=1, waiting=2),
        ContractStats(service_id="triage/alarm", finished=1, met=1),
    ]
    engine.reserved_gb_per_s = {"0": {}, "1": {"triage": 12.5}}
    listed = {one["contract_id"]: one for one in (await client.get("/v1/contracts")).json()["data"]}
    triage = listed["triage"]
    assert triage["fulfillment"] == {
        "finished": 8,
        "met": 6,
        "running": 1,
        "waiting": 2,
        "rate": 0.75,
        "refused": 0,
        "fell_back": 0,
        "budget": None,
        "reserved_gb_per_s": {"1": 12.5},
    }
    assert triage["sub_slos"]["alarm"]["fulfillment"]["rate"] == 1.0
    assert (await client.get("/v1/contracts/triage")).json() == triage
    assert (await client.get("/v1/contracts/triage/alarm")).json() == triage["sub_slos"]["alarm"]


async def test_the_budget_left_is_that_of_the_worst_objective(client, engine):
    budgets = [
        BudgetState(objective="latency_p99", allowed=0.01, requests=200, missed=1, burned=0.5),
        BudgetState(objective="availability", allowed=0.001, requests=200, missed=3, burned=3.0),
    ]
    engine.contract_stats = [ContractStats(service_id="triage", refused=3, fell_back=2, budgets=budgets)]
    fulfillment = (await client.get("/v1/contracts/triage")).json()["fulfillment"]
    assert (fulfillment["refused"], fulfillment["fell_back"]) == (3, 2)
    budget = fulfillment["budget"]
    assert (budget["burned"], budget["left"]) == (3.0, 0.0)
    assert [one["objective"] for one in budget["objectives"]] == ["latency_p99", "availability"]
    assert budget["objectives"][0] == {
        "objective": "latency_p99",
        "allowed": 0.01,
        "requests": 200,
        "missed": 1,
        "burned": 0.5,
    }


async def test_before_the_first_request_there_is_no_rate(client):
    assert (await client.get("/v1/contracts/triage")).json()["fulfillment"]["rate"] is None


async def test_an_unknown_contract_is_not_found(client):
    answer = await client.get("/v1/contracts/nobody")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "contract_not_found"
