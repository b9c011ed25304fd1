from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest

from superinfer.cli.bench.bounds import build_contracts
from superinfer.cli.bench.scenario import load_scenario
from superinfer.cli.bench.simulated_load import simulated_load
from superinfer.cli.bench.trace import read_trace
from superinfer.cli.bench.workload import build_workload, encode_by_hash, offered_rate
from superinfer.contracts.errors import UsageError

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,48,10
2023-11-16 18:17:04.4799600,31,8
2023-11-16 18:17:05.9799600,110,0
"""
MOONCAKE = [(0, 67, 5), (500, 7, 9), (2000, 400, 1)]
SCENARIO = """
name: traced
requests: 7
arrival: {process: trace, file: requests.csv}
classes:
  - service_id: chat
    share: 1
    prompt_tokens: {kind: trace, high: 100}
    output_tokens: {kind: trace}
    slo: {slo_scale: 3}
"""


def mooncake(path: Path) -> Path:
    keys = ("timestamp", "input_length", "output_length")
    path.write_text(
        "".join(json.dumps({**dict(zip(keys, row, strict=True)), "hash_ids": [1]}) + "\n" for row in MOONCAKE)
    )
    return path


def azure(folder: Path) -> Path:
    (folder / "requests.csv").write_text(AZURE)
    (folder / "scenario.yaml").write_text(SCENARIO)
    return folder / "requests.csv"


def test_both_formats_give_times_from_zero_and_lengths_of_at_least_one(tmp_path):
    trace = read_trace(azure(tmp_path))
    assert trace.arrival_s == pytest.approx([0, 0.5, 2])
    assert trace.prompt_tokens.tolist() == [48, 31, 110]
    assert trace.output_tokens.tolist() == [10, 8, 1]
    other = read_trace(mooncake(tmp_path / "t.jsonl"))
    assert other.arrival_s == pytest.approx([0, 0.5, 2])
    assert other.prompt_tokens.tolist() == [67, 7, 400]


@pytest.mark.parametrize(
    ("name", "text", "parts"),
    [
        ("t.txt", "", ["t.txt", ".csv (Azure)", ".jsonl (Mooncake)"]),
        ("t.csv", "TIMESTAMP,ContextTokens\n", ["column GeneratedTokens is missing"]),
        ("t.csv", AZURE + "yesterday,1,1\n", ["line 5"]),
        ("t.csv", "\n".join(AZURE.splitlines()[:2]), ["at least two requests"]),
        ("t.jsonl", '{"timestamp": 1}\n', ["line 1", "input_length"]),
    ],
)
def test_a_broken_trace_is_one_line_that_names_the_place(tmp_path, name, text, parts):
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError) as caught:
        read_trace(tmp_path / name)
    message = str(caught.value)
    assert "\n" not in message
    assert all(part in message for part in [str(tmp_path), *parts])


def test_a_trace_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"trace .*none.csv: cannot be read"):
        read_trace(tmp_path / "none.csv")


def test_a_scenario_takes_arrivals_and_lengths_from_its_trace_and_begins_again_at_its_end(tmp_path):
    azure(tmp_path)
    scenario = load_scenario(str(tmp_path / "scenario.yaml"))
    rate = offered_rate(scenario, 99.0)
    assert rate == pytest.approx(1.0)
    load = simulated_load(scenario, seed=0, rate_rps=rate)
    assert load.offsets_s == pytest.approx([0, 0.5, 2, 3, 3.5, 5, 6])
    assert load.prompt_tokens.tolist() == [48, 31, 100, 48, 31, 100, 48]
    assert load.output_tokens.tolist() == [10, 8, 1, 10, 8, 1, 10]
    assert simulated_load(scenario, seed=0, rate_rps=4.0).offsets_s == pytest.approx(load.offsets_s / 4)


def test_a_simulated_load_is_the_real_one_without_its_text(tmp_path, scenario, model):
    azure(tmp_path)
    for chosen in (scenario, load_scenario(str(tmp_path / "scenario.yaml"))):
        real = build_workload(chosen, seed=5, rate_rps=3.0, encode=encode_by_hash(100))
        simulated = list(simulated_load(chosen, seed=5, rate_rps=3.0).requests())
        for planned, request in zip(real, simulated, strict=True):
            assert (planned.request_id, planned.service_id) == (request.request_id, request.contract_id)
            assert len(planned.prompt_token_ids) == len(request.prompt_token_ids)
            assert planned.sampling == request.sampling
            assert planned.offset_s == request.arrival_s
        assert build_contracts(chosen, model)[chosen.classes[0].service_id].deadline_ms > 0


def test_lengths_from_a_trace_need_one(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO.replace("{process: trace, file: requests.csv}", "{process: poisson}"))
    with pytest.raises(UsageError, match=r"load"):
        load_scenario(str(path))
    path.write_text(SCENARIO.replace("{process: trace, file: requests.csv}", "{process: poisson}") + "load: 1\n")
    with pytest.raises(UsageError, match=r"kind: trace need arrival"):
        load_scenario(str(path))


TRACES = os.environ.get("SUPERINFER_TRACES")


@pytest.mark.skipif(TRACES is None, reason="SUPERINFER_TRACES names no folder of public traces")
def test_the_public_traces_are_read_whole():
    assert TRACES is not None
    files = [path for path in sorted(Path(TRACES).iterdir()) if path.suffix in (".csv", ".jsonl")]
    assert files
    for path in files:
        trace = read_trace(path)
        assert len(trace) > 1000
        assert np.all(np.diff(trace.arrival_s) >= 0)
        assert all(a > 0 for a in itertools.chain(trace.prompt_tokens, trace.output_tokens))
