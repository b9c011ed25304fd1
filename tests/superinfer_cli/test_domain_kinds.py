"""Domains of several kinds as somebody writes them, and what an engine is told of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from superinfer.cli import domain_kinds
from superinfer.cli.domain_kinds import KindOptions, asked_kinds, fastest_model, make_groups, predicted_kinds
from superinfer.contracts.contract import SLOContract
from superinfer.contracts.errors import UsageError
from superinfer.executor.models.source import ModelSource
from superinfer.executor.silence import SILENCE_S

FILE = """
domain_kinds:
  exact: {dtype: float32, domains: 1}
  quick: {dtype: int8, domains: 2, kv_cache_memory: 64MiB, host_kv_memory: 1MiB, max_running: 16, max_step_tokens: 96}
"""


def written(directory: Path, text: str) -> Path:
    file = directory / "domains.yaml"
    file.write_text(text)
    return file


def test_flags_name_a_precision_and_how_many_domains_have_it() -> None:
    assert asked_kinds(None, None, 2) == []
    assert asked_kinds(["float32", "int8=2"], None, None) == [
        KindOptions("float32", "float32", 1),
        KindOptions("int8", "int8", 2),
    ]


def test_a_file_has_a_name_and_limits_for_each_kind(tmp_path: Path) -> None:
    kinds = [
        KindOptions("exact", "float32", 1),
        KindOptions("quick", "int8", 2, 64 << 20, "1MiB", max_running=16, max_step_tokens=96),
    ]
    assert asked_kinds(None, written(tmp_path, FILE), None) == kinds
    assert asked_kinds(None, written(tmp_path, FILE.replace("domain_kinds:\n", "")), None) == kinds


@pytest.mark.parametrize("flag", ["int4=1", "int8=0", "int8=", "int8=-1", "int8=two", "=1", "", "int8=1=1", "int8=1 "])
def test_a_flag_that_is_no_precision_and_number_is_told_with_what_is_accepted(flag: str) -> None:
    with pytest.raises(
        UsageError, match=r"--domain-kind '.*': write PRECISION=DOMAINS, like int8=1; precisions: auto,"
    ):
        asked_kinds([flag], None, None)


def test_numbers_of_domains_are_given_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--domains 2: --domain-kind says how many"):
        asked_kinds(["int8=1"], None, 2)
    with pytest.raises(UsageError, match="--domain-kind and --domains-file: give one"):
        asked_kinds(["int8=1"], written(tmp_path, FILE), None)
    with pytest.raises(UsageError, match="int8 is given twice"):
        asked_kinds(["int8=1", "int8=2"], None, None)
    with pytest.raises(UsageError, match="--domain-kind: 5000 domains are too many; at most 4096"):
        asked_kinds(["int8=5000"], None, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"domains\.yaml: a mapping of names to kinds is needed"),
        ("[1]", r"domains\.yaml: a mapping of names"),
        ("a: int8", r"domains\.yaml: a: 'int8' is not accepted; expected a mapping"),
        ("a: {dtype: int8, domain: 1}", r"a: unknown key 'domain'; accepted: dtype, domains, max_running"),
        ("a: {domains: 1}", "a: dtype None is unknown; accepted: auto, float32"),
        ("a: {dtype: [int8]}", "a: dtype .* is unknown"),
        ("a: {dtype: int8, domains: 0}", "a: domains 0 is not accepted; expected a whole number"),
        ("a: {dtype: int8, domains: yes}", "a: domains True is not accepted"),
        ("a: {dtype: int8, max_running: 1.5}", "a: max_running 1.5 is not accepted"),
        ("a: {dtype: int8, kv_cache_memory: much}", "a: kv_cache_memory 'much' is not an amount of memory"),
        ("a: {dtype: int8}\na: {dtype: int8}", "given twice"),
        (
            "1: {dtype: int8}\n'1': {dtype: float32}",
            r"domains\.yaml: 1 is given twice; give each kind a name of its own",
        ),
        ("a: {dtype: int8, max_running: 1048577}", "max_running 1048577 is not accepted; .* from 1 to 1048576"),
        (
            "a: {dtype: int8, domains: 4096}\nb: {dtype: int8}",
            r"domains\.yaml: 4097 domains are too many; at most 4096",
        ),
        ("'': {dtype: int8}", r'domains\.yaml: "" is no name of a kind'),
        ("null: {dtype: int8}", r"domains\.yaml: null is no name of a kind"),
        ("'a b': {dtype: int8}", r'domains\.yaml: "a b" is no name of a kind; use up to 64 letters'),
        ('"a\\n\\e[31m": {dtype: int8}', r"domains\.yaml: .* is no name of a kind"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        asked_kinds(None, written(tmp_path, text), None)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there_is_told() -> None:
    with pytest.raises(UsageError, match=r"domains file nowhere\.yaml: cannot be read"):
        asked_kinds(None, Path("nowhere.yaml"), None)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelSource:
    """A model with a profile in every precision, that in int8 twice as fast."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "executor" / "support"))
    from engine_harness import write_profile

    def profile(source: ModelSource, dtype: str, **options: object) -> Path:
        return write_profile(tmp_path / f"{dtype}.json", 0.01 if dtype == "int8" else 0.02)

    monkeypatch.setattr(domain_kinds, "ensure_profile", profile)
    return ModelSource("toy", tmp_path, True)


def test_a_kind_below_the_reference_precision_loses_some_and_has_what_is_not_said_of_it_from_all(
    source: ModelSource, tmp_path: Path
) -> None:
    asked = asked_kinds(None, written(tmp_path, FILE), None)
    common = {"random_weights": False, "host_kv_memory": None, "block_size": 16}
    exact, quick = make_groups(asked, source, "float32", kv_cache_bytes=32 << 20, **common)  # type: ignore[arg-type]
    assert (exact.loses_precision, quick.loses_precision) == (False, True)
    assert (exact.kv_cache_bytes, quick.kv_cache_bytes) == (32 << 20, 64 << 20)
    assert exact.host_blocks == 0
    assert quick.host_blocks == (1 << 20) // (16 * 2 * 2 * 2 * 16 * 4)  # tokens, k/v, layers, heads, elements, bytes
    assert (quick.domains, quick.max_running, quick.max_step_tokens) == (2, 16, 96)
    _, in_int8 = make_groups(asked, source, "int8", kv_cache_bytes=None, **common)  # type: ignore[arg-type]
    assert not in_int8.loses_precision


def test_a_contract_is_held_against_the_fastest_kind_that_it_permits(source: ModelSource) -> None:
    groups = make_groups(
        asked_kinds(["float32=1", "int8=1"], None, None),
        source,
        "float32",
        random_weights=False,
        kv_cache_bytes=None,
        host_kv_memory=None,
        block_size=16,
    )
    model_of = fastest_model(predicted_kinds(groups))
    strict, tolerant = SLOContract(service_id="a"), SLOContract(service_id="b", precision_loss_allowed=True)
    assert model_of(strict).unloaded_s(1, 1) == pytest.approx(0.02, rel=0.01)
    assert model_of(tolerant).unloaded_s(1, 1) == pytest.approx(0.01, rel=0.01)


def test_a_bench_says_before_it_starts_which_contracts_no_domain_serves(
    source: ModelSource, capsys: pytest.CaptureFixture[str]
) -> None:
    from superinfer.cli.bench.announce import announce
    from superinfer.cli.bench.scenario import load_scenario

    groups = make_groups(
        asked_kinds(["int8=1"], None, None),
        source,
        "float32",
        random_weights=False,
        kv_cache_bytes=None,
        host_kv_memory=None,
        block_size=16,
    )
    contracts = [SLOContract(service_id="strict"), SLOContract(service_id="loose", precision_loss_allowed=True)]
    announce(
        load_scenario("mixed"),
        {contract.service_id: contract for contract in contracts},
        ["slack"],
        requests=1,
        sending_s=1.0,
        rate_rps=1.0,
        capacity_rps=1.0,
        kinds=predicted_kinds(groups),
    )
    said = capsys.readouterr().err
    assert "contract strict: no domain has the devices and the precision" in said
    assert "contract loose: no domain" not in said


def test_the_command_lines_silence_is_that_of_the_client() -> None:
    import inspect

    from superinfer.cli.serve.command import serve
    from superinfer.executor.client import EngineClient

    assert inspect.signature(serve).parameters["engine_timeout"].default == SILENCE_S
    assert inspect.signature(EngineClient).parameters["silence_s"].default == SILENCE_S
