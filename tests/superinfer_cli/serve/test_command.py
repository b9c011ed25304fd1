from __future__ import annotations

import json
import os

import pytest

from superinfer.cli.serve.command import domains_text
from superinfer.cli.serve.contract_book import load_contracts_and_state
from superinfer.cli.serve.preparation import (
    all_contract_ids,
    api_keys,
    check_attainable,
    check_scheduling,
    context_length,
    note_other_devices,
    note_unreserved,
    note_unserved,
    read_fault_map,
)
from superinfer.contracts.contract import Bound, ResourceConstraints, SLOContract
from superinfer.contracts.errors import ContractConflictError, ModelError, UsageError
from superinfer.executor.messages import DomainInfo
from superinfer.executor.models.source import ModelSource
from superinfer.profiler.feasibility import UnattainableContractError
from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.domain_kind import DomainKind


def test_keys_come_from_flags_and_environment_and_leave_the_environment(monkeypatch):
    monkeypatch.setenv("SUPERINFER_API_KEY", "two three")
    assert api_keys(["one"]) == ("one", "two", "three")
    assert "SUPERINFER_API_KEY" not in os.environ


@pytest.mark.parametrize("key", ["", " ", "a b"])
def test_a_key_that_no_client_could_send_is_refused_without_being_shown(key, monkeypatch):
    monkeypatch.delenv("SUPERINFER_API_KEY", raising=False)
    with pytest.raises(UsageError, match="--api-key") as raised:
        api_keys([key])
    assert "a b" not in str(raised.value)


def test_an_unknown_policy_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match=r"luck.*slack"):
        check_scheduling("luck", None)
    check_scheduling("fcfs", None)


def test_a_decay_profile_is_read_before_anything_starts(tmp_path):
    with pytest.raises(UsageError, match=r"missing\.yaml"):
        check_scheduling("slack", tmp_path / "missing.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("nonsense: 1\n")
    with pytest.raises(UsageError, match=r"broken\.yaml"):
        check_scheduling("slack", broken)


def test_the_default_contract_cannot_be_declared(tmp_path):
    (tmp_path / "mine.yaml").write_text("service_id: best-effort\nslo: {latency: {p99_ms: 10}}\n")
    with pytest.raises(ContractConflictError, match="best-effort"):
        load_contracts_and_state(tmp_path, None, print)


def test_without_a_directory_only_the_default_contract_is_there():
    assert [contract.service_id for contract in load_contracts_and_state(None, None, print)[0].list()] == [
        "best-effort"
    ]


def test_a_bound_below_the_models_own_time_stops_the_start_or_is_noted(capsys):
    model = LatencyModel(0.01, [(1, 0.0), (2, 0.0)], 0.0, 0.0, 0.0, 0.0, 0.0)
    contracts = [
        SLOContract(service_id="a", ttft=(Bound(0.99, 9.0),)),
        SLOContract(service_id="b", tpot=(Bound(0.5, 10.0),)),
    ]
    with pytest.raises(
        UnattainableContractError, match=r"'a': ttft p99 9 ms is below the 10 ms .*--allow-unattainable"
    ):
        check_attainable(contracts, model, allow=False)
    check_attainable(contracts, model, allow=True)
    noted = capsys.readouterr()
    assert noted.out == ""
    assert noted.err.startswith("note: accepted though out of reach: contract 'a': ttft p99 9 ms")
    check_attainable(contracts[1:], model, allow=False)


@pytest.mark.parametrize(
    ("own", "asked", "served"), [(2048, None, 2048), (131072, None, 8192), (131072, 20000, 20000), (2048, 100, 100)]
)
def test_the_context_is_as_asked_or_the_models_own(tmp_path, own, asked, served):
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": own}))
    assert context_length(ModelSource("tiny", tmp_path, has_weights=False), asked) == served


def test_more_context_than_the_model_has_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 2048}))
    with pytest.raises(UsageError, match=r"--max-model-len 2049.*2048"):
        context_length(ModelSource("tiny", tmp_path, has_weights=False), 2049)


@pytest.mark.parametrize("own", ["many", [2048], -1])
def test_a_context_that_is_no_length_is_one_error_that_names_the_field(tmp_path, own):
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": own}))
    with pytest.raises(ModelError, match=r"config\.json: max_position_embeddings must be a positive integer"):
        context_length(ModelSource("tiny", tmp_path, has_weights=False), None)
    (tmp_path / "config.json").write_text('{"max_position_embeddings": null}')
    assert context_length(ModelSource("tiny", tmp_path, has_weights=False), 512) == 512


def test_a_fault_domain_map_is_held_against_the_contracts_and_domains_of_the_server(tmp_path):
    contracts = all_contract_ids([SLOContract(service_id="a", sub_slos={"b": SLOContract(service_id="a/b")})])
    file = tmp_path / "map.yaml"
    file.write_text("a/b: [domain-1]\na: {home: [domain-0], backup: []}\n")
    assert read_fault_map(None, contracts, 2) == {}
    assert {key: entry.home for key, entry in read_fault_map(file, contracts, 2).items()} == {
        "a/b": ("1",),
        "a": ("0",),
    }
    with pytest.raises(UsageError, match=r"map\.yaml: a/b: domain 'domain-1' does not exist; accepted: domain-0$"):
        read_fault_map(file, contracts, 1)
    with pytest.raises(UsageError, match="contract 'a/b' is not registered"):
        read_fault_map(file, ["a"], 2)


def test_bandwidth_that_cannot_be_kept_is_noted_at_the_start(capsys):
    contract = SLOContract(service_id="a", resources=ResourceConstraints(reserved_bandwidth_gb_per_s=10.0))
    note_unreserved([contract, SLOContract(service_id="b")], 12.0)
    assert capsys.readouterr().err == ""
    note_unreserved([contract], 10.0)
    assert "contract a reserves 10 GB/s; at most 9.0 GB/s" in capsys.readouterr().err


def test_devices_that_a_contract_asks_for_and_this_server_lacks_are_noted(capsys):
    note_other_devices([SLOContract(service_id="a")], "AMD EPYC")
    assert capsys.readouterr().err == ""
    wanted = ResourceConstraints(min_gpu_count=2, preferred_gpu_type="H100-SXM5")
    note_other_devices([SLOContract(service_id="b", resources=wanted)], "AMD EPYC")
    said = capsys.readouterr().err
    assert "contract b: resource_constraints.min_gpu_count is 2; a domain of this server is one worker" in said
    assert "contract b: prefers H100-SXM5; this server has AMD EPYC" in said
    note_other_devices(
        [SLOContract(service_id="c", resources=ResourceConstraints(preferred_gpu_type="H100"))], "NVIDIA H100"
    )
    assert capsys.readouterr().err == ""


def test_a_contract_that_no_kind_of_domain_may_serve_is_noted(capsys):
    model = LatencyModel(0.01, [(1, 0.0), (256, 1e-6)], 0.0, 0.0, 0.0, 0.0, 0.0)
    rounded = DomainKind("quick", model, precision="int8", loses_precision=True, device_type="CPU")
    contracts = [SLOContract(service_id="lax", precision_loss_allowed=True), SLOContract(service_id="strict")]
    note_unserved(contracts, [])
    note_unserved(contracts, [rounded, DomainKind("exact", model, precision="float32")])
    assert capsys.readouterr().err == ""
    note_unserved(contracts, [rounded])
    said = capsys.readouterr().err
    assert "contract strict: no domain has the devices and the precision it asks for" in said
    assert "quick (1 × CPU, int8)" in said
    assert "lax" not in said


def test_the_ready_line_counts_domains_by_kind_where_there_are_several():
    one, other = DomainInfo("0", 1, 8, 16, "float32"), DomainInfo("1", 2, 8, 16, "int8")
    assert domains_text([one]) == "1 domain"
    assert domains_text([one, one]) == "2 domains"
    assert domains_text([one, other, other]) == "3 domains (1 float32, 2 int8)"
