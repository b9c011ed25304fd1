"""Each way to get a contract wrong has one line that says where, what, and what is accepted instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from superinfer.contracts.errors import ContractConflictError, ContractError
from superinfer.contracts.loading import MAX_BYTES, load_contracts
from superinfer.contracts.problems import InvalidContractError

ID_ACCEPTS = "expected lower-case letters, digits and '-' ([a-z0-9-]+)"
SLO_KEYS = "latency, ttft, tpot, availability, fallback, precision_loss_allowed"
TOP_KEYS = "service_id, description, slo, resource_constraints, priority, sub_slos"
MALFORMED = {
    "negative bound": (
        "service_id: a\nslo: {latency: {p99_ms: -5}}",
        "FILE: slo.latency.p99_ms: -5 is not accepted; expected a number > 0",
    ),
    "zero bound": (
        "service_id: a\nslo: {ttft: {p95_ms: 0}}",
        "FILE: slo.ttft.p95_ms: 0 is not accepted; expected a number > 0",
    ),
    "bound as text": (
        "service_id: a\nslo: {latency: {p99_ms: 150ms}}",
        'FILE: slo.latency.p99_ms: "150ms" is not accepted; expected a number > 0',
    ),
    "bound as truth value": (
        "service_id: a\nslo: {latency: {p99_ms: yes}}",
        "FILE: slo.latency.p99_ms: true is not accepted; expected a number > 0",
    ),
    "NaN": (
        "service_id: a\nslo: {latency: {p99_ms: .nan}}",
        "FILE: slo.latency.p99_ms: NaN is not accepted; expected a number > 0",
    ),
    "infinity": (
        "service_id: a\nslo: {latency: {max_jitter_ms: .inf}}",
        "FILE: slo.latency.max_jitter_ms: Infinity is not accepted; expected a number > 0",
    ),
    "decreasing percentiles": (
        "service_id: a\nslo: {latency: {p50_ms: 100, p99_ms: 50}}",
        "FILE: slo.latency.p99_ms: 50 is less than p50_ms 100; "
        "expected bounds that do not decrease from one percentile to a higher one",
    ),
    "space in the id": ("service_id: a b\nslo: {}", f'FILE: service_id: "a b" is not accepted; {ID_ACCEPTS}'),
    "upper case in the id": ("service_id: Abc\nslo: {}", f'FILE: service_id: "Abc" is not accepted; {ID_ACCEPTS}'),
    "line break in the id": ('service_id: "a\\n"\nslo: {}', f'FILE: service_id: "a\\n" is not accepted; {ID_ACCEPTS}'),
    "number as the id": ("service_id: 7\nslo: {}", f"FILE: service_id: 7 is not accepted; {ID_ACCEPTS}"),
    "empty id": ("service_id: ''\nslo: {}", f'FILE: service_id: "" is not accepted; {ID_ACCEPTS}'),
    "no id": ("slo: {}", f"FILE: service_id: is missing; {ID_ACCEPTS}"),
    "no slo": ("service_id: a", f"FILE: slo: is missing; expected a mapping with keys among {SLO_KEYS}"),
    "slo is a number": (
        "service_id: a\nslo: 3",
        f"FILE: slo: 3 is not accepted; expected a mapping with keys among {SLO_KEYS}",
    ),
    "misspelt percentile": (
        "service_id: a\nslo: {latency: {p9_ms: 3}}",
        "FILE: slo.latency.p9_ms: unknown key; did you mean p99_ms?",
    ),
    "misspelt short key": (
        "service_id: a\nlatency_p95: 200",
        "FILE: latency_p95: unknown key; did you mean latency_p95_ms?",
    ),
    "unknown key": (
        "service_id: a\nslo: {zzz: 3}",
        f"FILE: slo.zzz: unknown key; expected one of {SLO_KEYS}",
    ),
    "short key beside slo": (
        "service_id: a\nslo: {}\nlatency_p95_ms: 3",
        "FILE: latency_p95_ms: unknown key beside slo; expected slo.latency.p95_ms",
    ),
    "negative short bound": (
        "service_id: a\nlatency_p95_ms: -2",
        "FILE: latency_p95_ms: -2 is not accepted; expected a number > 0",
    ),
    "availability above one": (
        "service_id: a\nslo: {availability: 99.9}",
        "FILE: slo.availability: 99.9 is not accepted; expected a number between 0 and 1, such as 0.999",
    ),
    "availability of one": (
        "service_id: a\nslo: {availability: 1}",
        "FILE: slo.availability: 1 is not accepted; expected a number between 0 and 1, such as 0.999",
    ),
    "fallback forbidden but named": (
        "service_id: a\nslo: {fallback: {allowed: false, alternative_service: b}}",
        'FILE: slo.fallback.alternative_service: "b" is given but allowed is false; '
        "expected allowed: true, or no alternative_service",
    ),
    "fallback named but not permitted": (
        "service_id: a\nslo: {fallback: {alternative_service: b}}",
        'FILE: slo.fallback.alternative_service: "b" is given but allowed is not; expected allowed: true beside it',
    ),
    "alternative that does not exist": (
        "service_id: a\nslo: {fallback: {allowed: true, alternative_service: reportgen}}\n---\n"
        "service_id: report-gen\nslo: {}",
        'FILE: document 1: slo.fallback.alternative_service: "reportgen" does not exist; did you mean report-gen?',
    ),
    "alternative that is itself": (
        "service_id: a\nslo: {fallback: {allowed: true, alternative_service: a}}",
        'FILE: slo.fallback.alternative_service: "a" is not accepted; expected another service than this one',
    ),
    "fallback as text": (
        "service_id: a\nslo: {fallback: {allowed: maybe}}",
        'FILE: slo.fallback.allowed: "maybe" is not accepted; expected true or false',
    ),
    "fractional device count": (
        "service_id: a\nslo: {}\nresource_constraints: {min_gpu_count: 1.5}",
        "FILE: resource_constraints.min_gpu_count: 1.5 is not accepted; expected a whole number >= 1",
    ),
    "bad sub-task bound": (
        "service_id: a\nslo: {}\nsub_slos: {step: {latency_p99_ms: 0}}",
        "FILE: sub_slos.step.latency_p99_ms: 0 is not accepted; expected a number > 0",
    ),
    "bad sub-task name": (
        "service_id: a\nslo: {}\nsub_slos: {Step One: {}}",
        f'FILE: sub_slos: "Step One" is not accepted; {ID_ACCEPTS}',
    ),
    "sub-tasks as a list": (
        "service_id: a\nslo: {}\nsub_slos: [x]",
        'FILE: sub_slos: ["x"] is not accepted; expected a mapping of sub-task names to their SLOs',
    ),
    "both ways to bound the first token": (
        "service_id: a\nslo: {latency: {p99_ms: 9, of: ttft}, ttft: {p99_ms: 9}}",
        "FILE: slo.ttft: is given beside latency.of: ttft; expected one of the two",
    ),
    "duplicate key": (
        "service_id: a\nslo: {}\nservice_id: b",
        'FILE: line 3, column 1: the key "service_id" is given twice; expected it once',
    ),
    "alias": (
        "service_id: a\nslo: {latency: &x {p99_ms: 9}, ttft: *x}",
        "FILE: line 2, column 38: the alias *x is not accepted; expected the value written out",
    ),
    "number as a key": ("service_id: a\nslo: {5: 1}", "FILE: slo.5: is not accepted as a key; expected text"),
    "a list as a key": ("? [a]\n: b", 'FILE: line 1, column 3: ["a"] is not accepted as a key; expected text'),
    "object tag": (
        "!!python/object/apply:os.system [ls]",
        "FILE: line 1, column 1: could not determine a constructor for the tag "
        "'tag:yaml.org,2002:python/object/apply:os.system'",
    ),
    "text": ("hello", f'FILE: "hello" is not accepted; expected a mapping with keys among {TOP_KEYS}'),
    "empty": ("", "FILE: is empty; expected a contract with service_id and slo"),
    "comments alone": ("# nothing\n---\n", "FILE: is empty; expected a contract with service_id and slo"),
    "deep nesting": ("[" * 5000, "FILE: line 1, column 33: is nested more than 32 levels deep"),
    "second of a list": (
        "- {service_id: a, slo: {}}\n- {service_id: b, slo: {}, priority: 0}",
        "FILE: item 2: priority: 0 is not accepted; expected a number > 0",
    ),
}


@pytest.mark.parametrize(("text", "expected"), MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_contract_file_gives_one_exact_line(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "contract.yaml"
    file.write_text(text)
    with pytest.raises(InvalidContractError) as caught:
        load_contracts(file)
    assert str(caught.value) == expected.replace("FILE", str(file))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"service_id: \xff\xfe", "is not UTF-8 text (byte 12); expected YAML or JSON in UTF-8"),
        (b"#" * (MAX_BYTES + 1), "is larger than 256 KiB, which no contract is"),
        (b"service_id: \x00", "is not YAML: "),
        (b"a: [1, 2", "line 1, column 9: expected ',' or ']', but got '<stream end>'"),
        (b"a: " + b"9" * 5000, "holds a value that cannot be read: "),
    ],
    ids=["not UTF-8", "huge", "control character", "unclosed", "endless number"],
)
def test_bytes_that_are_no_contract_give_a_clear_line(tmp_path: Path, data: bytes, expected: str) -> None:
    file = tmp_path / "contract.yaml"
    file.write_bytes(data)
    with pytest.raises(InvalidContractError) as caught:
        load_contracts(file)
    assert str(caught.value).startswith(f"{file}: {expected}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"service_id": "a",', "line 1, column 20: is not JSON: Expecting property name enclosed in double quotes"),
        ('{"service_id": "a", "service_id": "b"}', 'the key "service_id" is given twice; expected it once'),
        ('{"service_id": "a", "availability": NaN}', "NaN is not accepted; expected a finite number"),
        ("[" * 100_000, "is nested too deeply"),
        (
            '{"service_id": "a", "latency_p95_ms": 1e999}',
            "latency_p95_ms: Infinity is not accepted; expected a number > 0",
        ),
        ("[]", "is empty; expected a contract with service_id and slo"),
    ],
)
def test_malformed_json_gives_one_exact_line(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "contract.json"
    file.write_text(text)
    with pytest.raises(InvalidContractError) as caught:
        load_contracts(file)
    assert str(caught.value) == f"{file}: {expected}"


def test_an_alias_bomb_is_refused_at_its_first_alias(tmp_path: Path) -> None:
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))
    (tmp_path / "bomb.yaml").write_text(bomb)
    with pytest.raises(InvalidContractError, match=r"line 2, column 10: the alias \*a0 is not accepted"):
        load_contracts(tmp_path)


def test_all_problems_of_all_files_are_listed_and_counted_in_the_message(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("service_id: A\nslo: {latency: {p99_ms: -1}}")
    (tmp_path / "b.yaml").write_text("service_id: b\nslo: {}\nfoo: 1")
    with pytest.raises(InvalidContractError) as caught:
        load_contracts(tmp_path)
    assert len(caught.value.problems) == 3
    assert str(caught.value).endswith("(and 2 more problems)")


def test_a_path_without_contracts_says_what_is_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="does not exist; expected a contract file or a directory of them"):
        load_contracts(tmp_path / "absent")
    with pytest.raises(ContractError, match=r"holds no contract; expected files that end in .yaml, .yml, .json"):
        load_contracts(tmp_path)


def test_the_same_id_in_two_files_names_both(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text("service_id: twice\nslo: {}")
    with pytest.raises(ContractConflictError, match=r"'twice' is registered twice \(.*a\.yaml and .*b\.yaml\)"):
        load_contracts(tmp_path)
