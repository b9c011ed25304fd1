"""What is kept of contracts that were registered, updated and retired at run time."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superinfer.contracts.declaration import Declaration, declare
from superinfer.contracts.document import to_document
from superinfer.contracts.errors import ResourceError
from superinfer.contracts.loading import parse_declarations
from superinfer.contracts.registry import ContractRegistry
from superinfer.contracts.state_file import ContractState, CorruptStateError, StateFile
from superinfer.contracts.versions import KnownVersion

FULL = """
service_id: assistant
description: answers customers
slo:
  latency: {p50_ms: 1500, p99_ms: 6000, max_jitter_ms: 40}
  ttft: {p95_ms: 800}
  tpot: {p999_ms: 60.5}
  availability: 0.999
  fallback: {allowed: true, alternative_service: report}
  precision_loss_allowed: false
resource_constraints: {min_gpu_count: 2, preferred_gpu_type: H100, memory_per_gpu_mb: 40000,
                       reserved_bandwidth_gb_per_s: 120}
priority: 2
sub_slos:
  intent: {description: first step, latency_p99_ms: 400, fallback_allowed: false}
  "7": {tpot: {p50_ms: 3}}
"""


def declared(text: str) -> Declaration:
    return parse_declarations(text, "test")[0]


def state_of(*texts: str) -> ContractState:
    return ContractState().with_declared(map(declared, texts))


def terms_of(state: ContractState) -> dict[str, object]:
    return {key: (item.description, item.terms, item.sub_slos) for key, item in state.declarations.items()}


def test_a_declaration_and_its_document_say_the_same() -> None:
    declaration = declared(FULL)
    assert declare(to_document(declaration), "test") == declaration


NUMBERS = st.floats(0.001, 1e9) | st.integers(1, 10**6)


@given(
    terms=st.dictionaries(st.sampled_from(["latency_p99_ms", "ttft_p50_ms", "tpot_p999_ms", "max_jitter_ms"]), NUMBERS),
    priority=st.none() | NUMBERS,
    fallback=st.booleans(),
    description=st.text(max_size=8),
)
def test_any_declaration_survives_the_file(
    tmp_path_factory: pytest.TempPathFactory,
    terms: dict[str, float],
    priority: float | None,
    fallback: bool,
    description: str,
) -> None:
    document = {"service_id": "a", "description": description, "slo": {}, "priority": priority}
    if terms:
        del document["slo"]
        document.update(terms, fallback_allowed=fallback)
    state = ContractState().with_declared([declare(document, "test")])
    with StateFile(tmp_path_factory.mktemp("state") / "state.json") as file:
        file.save(state)
        assert terms_of(file.load()) == terms_of(state)


def test_what_was_saved_is_loaded_again(tmp_path: Path) -> None:
    state = state_of(FULL, "{service_id: b, latency_p99_ms: 5}").with_retired("c")
    state = state.with_versions({"assistant": KnownVersion(3, "f"), "c": KnownVersion(1, "g")})
    with StateFile(tmp_path / "state.json") as file:
        assert file.load() == ContractState()
        file.save(state)
        loaded = file.load()
    assert terms_of(loaded) == terms_of(state)
    assert (loaded.retired, loaded.versions) == (state.retired, state.versions)
    assert loaded.declarations["b"].source == f"{tmp_path / 'state.json'}: b"


def test_a_retired_contract_that_is_declared_again_is_no_longer_retired() -> None:
    state = state_of("{service_id: a, latency_p99_ms: 5}").with_retired("a")
    assert (dict(state.declarations), state.retired) == ({}, frozenset({"a"}))
    assert state.with_declared([declared("{service_id: a, latency_p99_ms: 6}")]).retired == frozenset()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "truncated"),
        (b"{", "truncated"),
        (b"\xff\xfe", "malformed"),
        (b"[" * 100_000, "corrupt"),
        (b"{}", "schema"),
        (b'{"schema": "other/9", "contracts": [], "retired": [], "versions": {}}', "'other/9'"),
        (b'{"schema": "superinfer.contracts-state/1", "contracts": [], "retired": [], "versions": {}, "x": 1}', "x"),
        (
            b'{"schema": "superinfer.contracts-state/1", "contracts": [{"service_id": "a", '
            b'"slo": {"latency": {"p99_ms": -1}}}], "retired": [], "versions": {}}',
            r"contracts\[0\]: slo.latency.p99_ms: -1",
        ),
        (
            b'{"schema": "superinfer.contracts-state/1", "contracts": [], "retired": [], '
            b'"versions": {"a": {"version": 0, "fingerprint": ""}}}',
            ">= 1",
        ),
        (
            b'{"schema": "superinfer.contracts-state/1", "contracts": [{"service_id": "a", "slo": {}}], '
            b'"retired": ["a"], "versions": {}}',
            "twice",
        ),
    ],
)
def test_a_corrupt_file_is_one_clear_error_and_stays_as_it_is(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(content)
    with StateFile(path) as file, pytest.raises(CorruptStateError, match=why) as raised:
        file.load()
    assert str(path) in str(raised.value)
    assert "move it away" in str(raised.value)
    assert path.read_bytes() == content


def test_two_servers_cannot_share_a_file(tmp_path: Path) -> None:
    with StateFile(tmp_path / "state.json"), pytest.raises(ResourceError, match="in use by another server"):
        StateFile(tmp_path / "state.json").__enter__()
    with StateFile(tmp_path / "state.json") as file:
        file.save(ContractState())


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"absent/state\.json cannot be written: No such file"):
        StateFile(tmp_path / "absent" / "state.json").__enter__()
    (tmp_path / "state.json").mkdir()
    with StateFile(tmp_path / "state.json") as file:
        with pytest.raises(ResourceError, match="cannot be read: Is a directory"):
            file.load()
        with pytest.raises(ResourceError, match="cannot be written"):
            file.save(ContractState())
    assert not (tmp_path / ".state.json.new").exists()


def test_a_kill_at_any_moment_leaves_one_whole_state(tmp_path: Path) -> None:
    path, draw = tmp_path / "state.json", random.Random(5)
    states = [
        ContractState().with_declared(declared(f"{{service_id: s{i}, latency_p99_ms: 5}}") for i in range(count))
        for count in (200, 3)
    ]
    with StateFile(path) as file:
        file.save(states[0])
    for _ in range(10):
        child = os.fork()
        if child == 0:
            with StateFile(path) as file:
                while True:
                    for state in states:
                        file.save(state)
        time.sleep(0.005 + 0.02 * draw.random())
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with StateFile(path) as file:  # the lock went with the process
            assert len(file.load().declarations) in {200, 3}


def test_version_numbers_go_on_after_a_restart_and_always_name_the_same_terms() -> None:
    first = ContractRegistry()
    first.register(declared("{service_id: a, latency_p99_ms: 5}"))
    first.apply(first.plan_update(declared("{service_id: a, latency_p99_ms: 6}")))
    assert first.get("a").version == 2
    same = ContractRegistry(first.versions)
    same.register(declared("{service_id: a, latency_p99_ms: 6}"))
    assert same.get("a").version == 2
    other = ContractRegistry(first.versions)
    other.register(declared("{service_id: a, latency_p99_ms: 5}"))
    assert other.get("a").version == 3
