from __future__ import annotations

import pytest
import yaml

from superinfer.cli.bench.scenario import BUILT_IN, load_scenario, override, parse_scenario
from superinfer.contracts.errors import UsageError

TRIAGE = {"service_id": "triage", "share": 1, "prompt_tokens": 8, "output_tokens": 4, "slo": {"slo_scale": 3}}
BASE = {"name": "s", "requests": 10, "load": 0.5, "classes": [TRIAGE]}


def problem(**changes):
    text = yaml.safe_dump({**BASE, **changes})
    with pytest.raises(UsageError) as error:
        parse_scenario(text, "s.yaml")
    message = str(error.value)
    assert message.startswith("scenario s.yaml: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_scenarios_are_valid_and_bear_their_name(name):
    assert load_scenario(name).name == name


def test_the_jitter_and_fault_scenarios_are_what_they_say():
    jitter = load_scenario("jitter")
    assert [c.share for c in jitter.classes] == [0.95, 0.05]
    assert len({c.slo.slo_scale for c in jitter.classes}) == 1
    fault = load_scenario("fault")
    assert fault.domains == 2
    assert [(f.kind, f.domain, f.at) for f in fault.faults] == [("kill", 0, 0.4)]


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"lode": 1}, ["lode: unknown key", "load"]),
        ({"load": -1}, ["load:", "greater than or equal to 0.01", "-1"]),
        ({"load": 1e-300}, ["load:", "greater than or equal to 0.01", "1e-300"]),
        ({"load": 1e30}, ["load:", "less than or equal to 100", "1e+30"]),
        ({"load": None, "rate_rps": 1e30}, ["rate_rps:", "less than or equal to 1000000", "1e+30"]),
        ({"load": None, "rate_rps": 1e-300}, ["rate_rps:", "greater than or equal to 0.0001", "1e-300"]),
        ({"requests": 10**18}, ["requests:", "less than or equal to 10000000", str(10**18)]),
        ({"warmup": 10**12}, ["warmup:", "less than or equal to 10000000", str(10**12)]),
        ({"domains": 10**6}, ["domains:", "less than or equal to 4096", str(10**6)]),
        ({"arrival": {"process": "gamma", "cv": 1e300}}, ["arrival.cv:", "less than or equal to 100", "1e+300"]),
        ({"arrival": {"process": "gamma", "cv": 1e-300}}, ["arrival.cv:", "greater than or equal to 0.01"]),
        ({"classes": [{**TRIAGE, "share": 1e308}]}, ["classes[0].share:", "less than or equal to", "1e+308"]),
        ({"classes": [{**TRIAGE, "prompt_tokens": 10**9}]}, ["prompt_tokens.value:", "less than or equal to 10000000"]),
        (
            {
                "classes": [
                    {**TRIAGE, "prompt_tokens": {"kind": "lognormal", "median": 9, "sigma": 1e300, "low": 1, "high": 9}}
                ]
            },
            ["prompt_tokens.sigma:", "less than or equal to 10", "1e+300"],
        ),
        ({"load": float("inf")}, ["load:", "finite"]),
        ({"rate_rps": 2}, ["load", "rate_rps"]),
        ({"requests": 0}, ["requests:", "0"]),
        ({"classes": []}, ["classes:"]),
        ({"classes": [TRIAGE, TRIAGE]}, ["triage", "twice"]),
        ({"classes": [{**TRIAGE, "service_id": "a b"}]}, ["classes[0].service_id:", "'a b'"]),
        ({"classes": [{**TRIAGE, "prompt_tokens": 0}]}, ["classes[0].prompt_tokens.value:"]),
        ({"classes": [{**TRIAGE, "prompt_tokens": "many"}]}, ["whole number", "uniform", "'many'"]),
        ({"classes": [{**TRIAGE, "prompt_tokens": {"kind": "zipf"}}]}, ["whole number", "lognormal"]),
        (
            {"classes": [{**TRIAGE, "output_tokens": {"kind": "uniform", "low": 9, "high": 3}}]},
            ["classes[0].output_tokens:", "high 3 is below low 9"],
        ),
        ({"classes": [{**TRIAGE, "output_tokens": {"kind": "uniform", "lo": 1, "high": 3}}]}, ["lo: unknown key"]),
        ({"classes": [{**TRIAGE, "slo": {"scale": 3}}]}, ["classes[0].slo.scale: unknown key", "slo_scale"]),
        ({"classes": [{**TRIAGE, "slo": {"slo_scale": 3, "latency_ms": 9}}]}, ["slo_scale or latency_ms"]),
        ({"arrival": {"process": "gamma"}}, ["arrival:", "cv"]),
        ({"faults": [{"domain": 1, "at": 0.5}]}, ["domain 1 does not exist"]),
        ({"faults": [{"at": 0.5, "at_s": 3}]}, ["faults[0]:", "at_s"]),
    ],
)
def test_an_error_names_the_file_the_key_and_what_is_accepted(changes, parts):
    message = problem(**changes)
    for part in parts:
        assert part in message


@pytest.mark.parametrize("text", ["", "- a", "7", "name: [", "\t"])
def test_text_that_is_no_mapping_is_one_clear_error(text):
    with pytest.raises(UsageError, match=r"s\.yaml"):
        parse_scenario(text, "s.yaml")


@pytest.mark.parametrize(
    ("text", "part"), [("[" * 3000, "nested more than 32"), ("started: 2020-13-45", "cannot be read: month")]
)
def test_yaml_that_cannot_be_built_is_one_clear_error(text, part):
    with pytest.raises(UsageError, match=part):
        parse_scenario(text, "s.yaml")


def test_a_missing_file_lists_the_built_in_names(tmp_path):
    with pytest.raises(UsageError, match="mixed, jitter, fault"):
        load_scenario(str(tmp_path / "none.yaml"))


def test_a_scenario_file_is_read_from_its_path(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(BASE))
    assert load_scenario(str(path)).requests == 10


def test_overrides_replace_and_are_checked_like_the_file():
    scenario = parse_scenario(yaml.safe_dump(BASE), "s.yaml")
    assert override(scenario, {"load": None, "rate_rps": 3.0}).rate_rps == 3.0
    with pytest.raises(UsageError, match="domain"):
        override(scenario, {"domains": 0})
