from __future__ import annotations

import httpx
import pytest

from superinfer.executor.messages import DomainStats
from superinfer.executor.runtime.device_sampler import DeviceSampler
from superinfer.executor.runtime.metrics import DeviceMetrics
from superinfer.executor.runtime.simulated import SimulatedRuntime
from superinfer.scheduler.topology import parse_topology

pytestmark = pytest.mark.anyio

COMPLETION = {"model": "tiny", "prompt": "abc"}


async def complete(client, **headers):
    return await client.post("/v1/completions", json=COMPLETION, headers=headers)


async def test_models_lists_the_served_one(make_client):
    client = make_client(model_name="org/tiny")
    listed = (await client.get("/v1/models")).json()
    assert [model["id"] for model in listed["data"]] == ["org/tiny"]
    assert (await client.get("/v1/models/org/tiny")).json() == listed["data"][0]
    assert (await client.get("/v1/models/other")).status_code == 404


async def test_the_contract_is_chosen_by_header_and_answered(client, engine):
    for name in ("triage", "triage/alarm"):
        answer = await complete(client, **{"x-slo-contract-id": name})
        assert answer.headers["x-slo-contract-id"] == name
        assert engine.requests[-1].contract_id == name


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_answer_names_the_contract_that_the_request_was_served_under(client, engine, path, stream):
    body = {"model": "tiny", "stream": stream, "n": 2}
    body |= {"messages": [{"role": "user", "content": "a"}]} if "chat" in path else {"prompt": "a"}
    answer = await client.post(path, json=body, headers={"x-slo-contract-id": "triage"})
    assert (answer.status_code, answer.headers["x-slo-contract-served"]) == (200, "triage")
    engine.alternatives["triage"] = "best-effort"
    answer = await client.post(path, json=body, headers={"x-slo-contract-id": "triage"})
    assert (answer.status_code, answer.headers["x-slo-contract-served"]) == (200, "best-effort")
    assert answer.headers["x-slo-contract-id"] == "triage"


async def test_without_the_header_a_request_is_best_effort(client, engine):
    assert (await complete(client)).headers["x-slo-contract-id"] == "best-effort"
    assert engine.requests[0].contract_id == "best-effort"


@pytest.mark.parametrize("name", ["nobody", "triage/nobody", "Bad Name"])
async def test_an_unknown_contract_is_not_found_and_nothing_runs(client, engine, name):
    answer = await complete(client, **{"x-slo-contract-id": name})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "contract_not_found"
    assert name in answer.json()["error"]["message"]
    assert not engine.requests


async def test_a_sane_request_id_is_echoed_and_others_replaced(client):
    assert (await complete(client, **{"x-request-id": "abc-1"})).headers["x-request-id"] == "abc-1"
    for insane in ("a b", "x" * 200, '"><script>'):
        given = (await complete(client, **{"x-request-id": insane})).headers["x-request-id"]
        assert given != insane
        assert given.startswith("req-")


async def test_the_same_request_id_twice_makes_two_engine_requests(client, engine):
    for _ in range(2):
        await complete(client, **{"x-request-id": "same"})
    assert len({request.request_id for request in engine.requests}) == 2


@pytest.mark.parametrize(
    ("rejection", "status", "code"),
    [
        (("overloaded", "later", 1.25), 429, "overloaded"),
        (("too_long", "too long", None), 400, "context_length_exceeded"),
        (("bandwidth_exceeded", "9.5 GB/s", None), 400, "bandwidth_exceeded"),
        (("engine_down", "down", None), 503, "engine_unavailable"),
        (("unknown_contract", "gone", None), 404, "contract_not_found"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_of_the_engine_is_an_error_answer_also_for_a_stream(
    client, engine, rejection, status, code, stream
):
    engine.rejection = rejection
    answer = await client.post("/v1/completions", json={**COMPLETION, "stream": stream})
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code
    if status == 429:
        assert answer.headers["retry-after"] == "2"
        assert answer.headers["retry-after-ms"] == "1250"


async def test_an_engine_that_fails_midway_breaks_the_answer_with_its_reason(client, engine):
    engine.failure = "worker 0 died"
    answer = await complete(client)
    assert answer.status_code == 503
    assert "worker 0 died" in answer.json()["error"]["message"]
    streamed = await client.post("/v1/completions", json={**COMPLETION, "stream": True})
    assert streamed.status_code == 200
    assert "worker 0 died" in streamed.text.split("\n\n")[-3]
    assert streamed.text.endswith("data: [DONE]\n\n")


async def test_health_follows_the_engine(client, engine, monkeypatch):
    assert (await client.get("/health")).status_code == 200
    engine.domains_up = []
    assert (await client.get("/health")).json()["error"]["code"] == "no_domain_up"
    monkeypatch.setattr("superinfer.cli.serve.state.ENGINE_ANSWER_S", 0.05)
    engine.answers_stats = False
    assert (await client.get("/health")).status_code == 503


async def test_health_says_of_which_kind_each_domain_is(client, engine):
    engine.domains = [DomainStats("0", "quick", "int8", True, 2, 1, 100, 40)]
    (domain,) = (await client.get("/health")).json()["domains"]
    assert domain == {
        "domain_id": "0",
        "kind": "quick",
        "precision": "int8",
        "is_up": True,
        "running": 2,
        "rotated": 1,
        "kv_blocks_total": 100,
        "kv_blocks_free": 40,
    }


async def test_health_has_the_figures_that_devices_have(make_app):
    runtime = SimulatedRuntime(parse_topology("nodes: [{name: n, devices: [{name: d, type: H100-SXM5}]}]", "test"))
    runtime.set_metrics("n/d", DeviceMetrics(device_utilization_percent=37.5, clock_throttle_reasons=[]))
    app = make_app()
    app.state.service.devices = DeviceSampler(runtime)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
        devices = (await client.get("/health")).json()["devices"]
    assert devices == {"n/d": {"device_utilization_percent": 37.5, "clock_throttle_reasons": []}}


async def test_unknown_routes_and_methods_have_the_same_shape(client):
    missing, wrong = await client.get("/v1/nothing"), await client.get("/v1/completions")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_route")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert "POST" in wrong.json()["error"]["message"]


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (None, 401),
        ("Bearer wrong", 401),
        ("Bearer", 401),
        ("Basic one", 401),
        ("Bearer ü", 401),
        ("Bearer one", 200),
        ("bearer two", 200),
    ],
)
async def test_only_a_known_key_opens_the_api(make_client, authorization, status):
    client = make_client(api_keys=("one", "two"))
    headers = {} if authorization is None else {"authorization": authorization.encode()}
    answer = await client.get("/v1/models", headers=headers)
    assert answer.status_code == status
    assert answer.headers["x-request-id"]
    if status == 401:
        assert answer.json()["error"]["code"] == "invalid_api_key"
    assert (await client.get("/health")).status_code == 200


def test_keys_do_not_appear_in_the_settings_text(make_app):
    assert "secret" not in repr(make_app(api_keys=("secret",)).state.service)


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_past_the_limit_is_refused(make_client, engine, declared):
    client = make_client(max_body_bytes=1000)

    async def parts():
        for _ in range(20):
            yield b"x" * 100

    answer = await client.post("/v1/completions", content=b"x" * 1001 if declared else parts())
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "body_too_large"
    assert not engine.requests
