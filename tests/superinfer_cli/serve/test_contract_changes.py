"""Contracts updated and retired over HTTP, kept over a restart, and checked against the device."""

from __future__ import annotations

import pytest

from superinfer.cli.serve.contract_book import ContractBook, load_contracts_and_state
from superinfer.contracts.state_file import StateFile
from superinfer.profiler.latency_model import LatencyModel

pytestmark = pytest.mark.anyio

MODEL = LatencyModel(
    launch_s=0.01,
    linear_points=[(1, 0.0), (256, 0.2)],
    decode_context_s=0.0,
    decode_s=0.0,
    prefill_pair_s=0.0,
    chunk_s=0.0,
    row_s=0.0,
)
COMPLETION = {"model": "tiny", "prompt": "a"}


def chat(p99_ms: float) -> str:
    return f"{{service_id: chat, latency_p99_ms: {p99_ms}}}"


def under(contract_id: str) -> dict[str, str]:
    return {"x-slo-contract-id": contract_id}


async def test_an_update_is_a_new_version_that_the_engine_learns(client, engine):
    await client.post("/v1/contracts", content=chat(900))
    answer = await client.put("/v1/contracts/chat", content=chat(800))
    assert answer.json() == {"status": "success", "contract_id": "chat", "version": 2, "versions": {"chat": 2}}
    assert [(one.version, one.deadline_ms) for one in engine.contracts] == [(1, 900), (2, 800)]
    assert (await client.get("/v1/contracts/chat")).json()["version"] == 2


async def test_an_update_that_changes_nothing_tells_nobody(client, engine):
    await client.post("/v1/contracts", content=chat(900))
    answer = await client.put("/v1/contracts/chat", content=chat(900))
    assert (answer.json()["version"], answer.json()["versions"]) == (1, {})
    assert len(engine.contracts) == 1


async def test_an_update_reaches_the_children_and_names_them(client, engine):
    await client.post("/v1/contracts", content=chat(900) + "\n---\n{service_id: chat-fast, ttft_p99_ms: 50}")
    answer = await client.put("/v1/contracts/chat", content=chat(800))
    assert answer.json()["versions"] == {"chat": 2, "chat-fast": 2}
    assert [one.service_id for one in engine.contracts[2:]] == ["chat", "chat-fast"]


async def test_a_retired_contract_is_not_found_by_new_requests(client, engine):
    await client.post("/v1/contracts", content=chat(900))
    answer = await client.delete("/v1/contracts/chat")
    assert answer.json() == {"status": "success", "contract_id": "chat", "retired": True}
    assert engine.retired == ["chat"]
    refused = await client.post("/v1/completions", json=COMPLETION, headers=under("chat"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "contract_not_found")
    assert (await client.get("/v1/contracts/chat")).status_code == 404
    assert (await client.delete("/v1/contracts/chat")).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "named"),
    [
        ("PUT", "nobody", "{service_id: nobody, latency_p99_ms: 1}", 404, "contract_not_found", "nobody"),
        ("PUT", "triage", chat(1), 400, "invalid_contract", "service_id triage, as in the path"),
        ("PUT", "triage", "service_id: triage\nslo: {latency: {p99_ms: -1}}", 400, "invalid_contract", "p99_ms: -1"),
        ("PUT", "triage", chat(1) + "\n---\n{service_id: triage, latency_p99_ms: 1}", 400, "invalid_contract", "one"),
        ("PUT", "triage", b"\xff", 400, "invalid_contract", "UTF-8"),
        ("PUT", "triage/alarm", chat(1), 400, "invalid_contract", "PUT /v1/contracts/triage"),
        ("DELETE", "triage/alarm", None, 400, "invalid_contract", "sub-task"),
        ("PUT", "best-effort", "{service_id: best-effort, latency_p99_ms: 1}", 409, "contract_conflict", "changed"),
        ("DELETE", "best-effort", None, 409, "contract_conflict", "best-effort"),
    ],
)
async def test_a_change_that_cannot_be_is_one_clear_error(client, engine, method, path, body, status, code, named):
    answer = await client.request(method, f"/v1/contracts/{path}", content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert named in answer.json()["error"]["message"]
    assert not engine.contracts
    assert not engine.retired


async def test_an_engine_that_is_down_hears_of_no_change(client, engine):
    engine.answers_stats = False
    assert (await client.delete("/v1/contracts/triage")).status_code == 503
    engine.answers_stats = True
    assert (await client.get("/v1/contracts/triage")).status_code == 200


def restart(path, contracts=None, **options):
    """A server's book as it is after a start with this state file, and what was noted."""
    notes = []
    with StateFile(path) as file:
        registry, state = load_contracts_and_state(contracts, file, notes.append)
    return ContractBook(registry, state_file=StateFile(path), state=state, **options), notes


async def test_what_was_changed_over_http_is_there_after_a_restart(make_client, tmp_path):
    files = tmp_path / "contracts"
    files.mkdir()
    (files / "a.yaml").write_text("{service_id: a, latency_p99_ms: 10}")
    (files / "b.yaml").write_text("{service_id: b, latency_p99_ms: 10}")
    (files / "c.yaml").write_text("{service_id: c, latency_p99_ms: 10}")
    path = tmp_path / "state.json"
    client = make_client(book=restart(path, files)[0])
    await client.post("/v1/contracts", content=chat(900))
    await client.put("/v1/contracts/chat", content=chat(800))
    await client.put("/v1/contracts/a", content="{service_id: a, latency_p99_ms: 20}")
    await client.delete("/v1/contracts/b")
    before = (await client.get("/v1/contracts")).json()

    book, notes = restart(path, files)
    client = make_client(book=book)
    assert (await client.get("/v1/contracts")).json() == before
    assert {one["contract_id"]: one["version"] for one in before["data"]} == {
        "a": 2,
        "best-effort": 1,
        "c": 1,
        "chat": 2,
    }
    assert notes == [
        f"contract a of {files / 'a.yaml'} was updated at run time ({path})",
        f"contract b of {files / 'b.yaml'} was retired at run time ({path})",
    ]
    again = await client.post("/v1/contracts", content="{service_id: b, latency_p99_ms: 30}")
    assert again.json()["versions"] == {"b": 2}


async def test_a_file_that_changed_between_two_starts_is_a_new_version(tmp_path):
    file, path = tmp_path / "a.yaml", tmp_path / "state.json"
    for p99_ms, version in ((10, 1), (10, 1), (20, 2), (10, 3)):
        file.write_text(f"{{service_id: a, latency_p99_ms: {p99_ms}}}")
        assert restart(path, file)[0].registry.get("a").version == version


async def test_a_change_that_cannot_be_saved_is_not_made(make_client, engine, tmp_path):
    path = tmp_path / "gone" / "state.json"
    path.parent.mkdir()
    client = make_client(book=restart(path)[0])
    for leftover in path.parent.iterdir():
        leftover.unlink()
    path.parent.rmdir()
    answer = await client.post("/v1/contracts", content=chat(900))
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "contracts_not_saved")
    assert str(path) in answer.json()["error"]["message"]
    assert (await client.get("/v1/contracts/chat")).status_code == 404
    assert not engine.contracts


async def test_a_bound_below_the_models_own_time_is_refused_with_the_figure(make_client, engine, tmp_path):
    path = tmp_path / "state.json"
    client = make_client(book=restart(path, latency_model=MODEL)[0])
    answer = await client.post("/v1/contracts", content="{service_id: chat, ttft_p99_ms: 9.5}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unattainable_contract")
    assert "9.5 ms is below the 10 ms" in answer.json()["error"]["message"]
    assert not engine.contracts
    assert "chat" not in path.read_text()
    await client.post("/v1/contracts", content=chat(900))
    assert (await client.put("/v1/contracts/chat", content="{service_id: chat, tpot_p50_ms: 9}")).status_code == 400
    assert (await client.get("/v1/contracts/chat")).json()["version"] == 1


async def test_an_unattainable_bound_that_was_let_in_is_kept_as_declared_and_named(make_client, engine, tmp_path):
    client = make_client(book=restart(tmp_path / "state.json", latency_model=MODEL, allow_unattainable=True)[0])
    answer = await client.post("/v1/contracts", content="{service_id: chat, ttft_p99_ms: 9.5}")
    assert answer.status_code == 200
    assert answer.json()["unattainable"] == [
        "contract 'chat': ttft p99 9.5 ms is below the 10 ms that a prompt of 1 token takes alone on this device"
    ]
    assert engine.contracts[0].ttft_deadline_ms == 9.5
