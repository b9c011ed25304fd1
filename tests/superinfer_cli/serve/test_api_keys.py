"""API keys that are bound to contracts: the file, and what a bound key may do."""

from __future__ import annotations

import hashlib

import pytest

from superinfer.cli.serve.api_keys import find_holder, load_api_keys
from superinfer.contracts.errors import UsageError

CONTRACTS = ["best-effort", "triage", "triage/alarm", "report-gen"]
FILE = f"""
sk-desk: [triage]
sk-alarm: [triage/alarm, report-gen]
sha256:{hashlib.sha256(b"sk-admin").hexdigest()}: ["*"]
"""
BODY = {"model": "tiny", "prompt": "a"}


@pytest.fixture
def holders(tmp_path):
    file = tmp_path / "keys.yaml"
    file.write_text(FILE)
    return load_api_keys(file, CONTRACTS)


def test_a_key_may_use_its_contracts_their_sub_tasks_and_best_effort(holders):
    desk = find_holder(holders, "sk-desk")
    alarm = find_holder(holders, "sk-alarm")
    admin = find_holder(holders, "sk-admin")
    assert [each for each in CONTRACTS if desk.may_use(each)] == ["best-effort", "triage", "triage/alarm"]
    assert [each for each in CONTRACTS if alarm.may_use(each)] == ["best-effort", "triage/alarm", "report-gen"]
    assert not desk.may_use("triage-night")
    assert admin.may_use("anything")
    assert (desk.may_change_contracts, admin.may_change_contracts) == (False, True)
    assert find_holder(holders, "sk-other") is None
    assert "sk-" not in repr(holders)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[sk-secret]", "a mapping of keys to contracts"),
        ("sk-secret: triage", "entry 1: 'triage' is not accepted; expected a list"),
        ("sk-secret: []", "entry 1: \\[\\] is not accepted"),
        ("sk-a: [triage]\nsk-secret: [triag]", "entry 2: contract 'triag' is not registered; did you mean triage"),
        ("'sk secret': [triage]", "entry 1: the key is empty, a number or holds white space"),
        ("12345: [triage]", "entry 1: the key is empty, a number"),
        (f"sk-secret: [triage]\nsha256:{hashlib.sha256(b'sk-secret').hexdigest()}: [triage]", "entry 2: .* twice"),
        ("sk-secret: 2020-13-45", "is not valid YAML"),
        ("sk-secret: [triage", r"line \d: this is not valid YAML"),
        ("sk-secret: [triage]\nsk-secret: ['*']", "line 2: this is not valid YAML, or a key that is there already"),
        ("sha256:abc: ['*']", "entry 1: after sha256: 64 lower-case hexadecimal digits"),
    ],
)
def test_what_is_wrong_with_a_key_file_is_told_in_one_line_without_a_key(tmp_path, text, message):
    file = tmp_path / "keys.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=rf"--api-keys .*keys\.yaml: {message}") as raised:
        load_api_keys(file, CONTRACTS)
    assert "secret" not in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_contract_that_the_key_is_not_bound_to_is_forbidden_and_nothing_runs(
    make_client, engine, holders, path
):
    client = make_client(key_holders=holders)
    body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]} if "chat" in path else BODY

    async def post(key, contract=None):
        headers = {"authorization": f"Bearer {key}"} | ({} if contract is None else {"x-slo-contract-id": contract})
        return await client.post(path, json=body, headers=headers)

    for contract in ("triage", "nobody"):
        refused = await post("sk-alarm", contract)
        assert refused.status_code == 403
        assert refused.json()["error"]["code"] == "contract_not_allowed"
        assert refused.json()["error"]["type"] == "permission_error"
        assert contract in refused.json()["error"]["message"]
    assert (await post("sk-wrong", "triage")).status_code == 401
    assert not engine.requests
    for key, contract in (
        ("sk-alarm", "triage/alarm"),
        ("sk-desk", "triage"),
        ("sk-desk", None),
        ("sk-admin", "triage"),
    ):
        assert (await post(key, contract)).status_code == 200


@pytest.mark.anyio
async def test_only_a_key_for_every_contract_may_change_them(make_client, engine, holders):
    client = make_client(key_holders=holders, api_keys=("sk-flag",))
    contract = {"service_id": "new", "latency_p95_ms": 200}

    def headers(key):
        return {"authorization": f"Bearer {key}"}

    for method, url in (("POST", "/v1/contracts"), ("PUT", "/v1/contracts/triage"), ("DELETE", "/v1/contracts/triage")):
        refused = await client.request(method, url, json=contract, headers=headers("sk-desk"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "contract_changes_not_allowed")
    assert not engine.contracts
    assert (await client.get("/v1/contracts", headers=headers("sk-desk"))).status_code == 200
    assert (await client.post("/v1/contracts", json=contract, headers=headers("sk-admin"))).status_code == 200
    assert (await client.delete("/v1/contracts/new", headers=headers("sk-flag"))).status_code == 200
