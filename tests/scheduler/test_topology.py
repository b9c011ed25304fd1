from __future__ import annotations

from pathlib import Path

import pytest

from superinfer.contracts.errors import UsageError
from superinfer.scheduler.topology import load_topology, parse_topology

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "topology.yaml"
DEVICE = "{name: d, memory_gb: 80, bandwidth_gb_per_s: 3350}"


def test_the_example_is_written_out_to_named_devices() -> None:
    topology = load_topology(EXAMPLE)
    assert list(topology.devices) == [f"node-{node}/gpu-{gpu}" for node in range(2) for gpu in range(4)]
    assert topology.devices["node-1/gpu-3"].memory_gb == 80
    assert topology.demands["report-gen"].output_tokens == 200


def test_links_are_found_within_a_node_between_nodes_and_nowhere() -> None:
    topology = load_topology(EXAMPLE)
    assert topology.link_gb_per_s("node-0/gpu-0", "node-0/gpu-1") == 450
    assert topology.link_gb_per_s("node-1/gpu-0", "node-0/gpu-1") == 50
    apart = parse_topology(f"nodes: [{{name: a, devices: [{DEVICE}]}}, {{name: b, devices: [{DEVICE}]}}]", "t")
    assert apart.link_gb_per_s("a/d", "b/d") is None
    assert apart.link_gb_per_s("a/d", "a/d") is None
    with pytest.raises(UsageError, match="'a/x' is not in topology"):
        apart.link_gb_per_s("a/d", "a/x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes: [", "topology t: not valid YAML"),
        ("[]", "a mapping with nodes is needed"),
        ("{}", "required field `nodes`"),
        ("nodes: []", "nodes: Expected `array` of length >= 1"),
        ("nodes: [{name: a, devices: [{name: d, memory_gb: 80}]}]", r"nodes\[0\].devices\[0\]: .*`bandwidth_gb_per_s`"),
        (f"nodes: [{{name: a, devices: [{DEVICE}], speed: 3}}]", r"nodes\[0\]: .*unknown field `speed`"),
        (
            "nodes: [{name: a, devices: [{name: d, memory_gb: -1, bandwidth_gb_per_s: 1}]}]",
            r"nodes\[0\].devices\[0\].memory_gb: Expected `float` > 0",
        ),
        (
            "nodes: [{name: a, devices: [{name: d, memory_gb: .nan, bandwidth_gb_per_s: 1}]}]",
            r"nodes\[0\].devices\[0\].memory_gb: Expected",
        ),
        (f"nodes: [{{name: a, devices: [{DEVICE}, {DEVICE}]}}]", "nodes: a: the device name 'd' is used twice"),
        (f"nodes: [{{name: a, devices: [{DEVICE}]}}, {{name: a, devices: [{DEVICE}]}}]", "the name 'a' is used twice"),
        (
            f"{{nodes: [{{name: a, devices: [{DEVICE}]}}], links: [{{between: [a, b], bandwidth_gb_per_s: 1}}]}}",
            r"links\[0\].between: 'b' is not a node; accepted: a",
        ),
        (
            f"{{nodes: [{{name: a, devices: [{DEVICE}]}}], links: [{{between: [a, a], bandwidth_gb_per_s: 1}}]}}",
            "linked with itself",
        ),
        (
            f"{{nodes: [{{name: a, devices: [{DEVICE}]}}], "
            "demands: {s: {rate_per_s: 1, prompt_tokens: 0, output_tokens: 1}}}",
            r"demands.*prompt_tokens: Expected `int` >= 1",
        ),
    ],
)
def test_each_mistake_is_one_line_that_names_its_place(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_topology(text, "t")
    assert str(caught.value).startswith("topology t: ")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="topology /nowhere: cannot be read"):
        load_topology(Path("/nowhere"))
