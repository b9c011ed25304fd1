from __future__ import annotations

from pathlib import Path

import pytest

from superinfer.contracts.errors import UsageError
from superinfer.profiler.data_sheet import data_sheet
from superinfer.scheduler.serving_groups import one_kind, serving_groups
from superinfer.scheduler.topology import example_names, load_topology, parse_topology


def nodes(devices: str, serving: str) -> str:
    return f"{{name: t, nodes: [{{name: n, count: 2, devices: [{devices}]}}], serving: {serving}}}"


def test_shipped_topologies_are_found_by_name_and_all_form_domains() -> None:
    assert "h100-4x8" in example_names()
    for name in example_names():
        assert serving_groups(load_topology(Path(name)))
    groups = serving_groups(load_topology(Path("h100-4x8.yaml")))
    assert [group.domain_id for group in groups] == ["node-0", "node-1", "node-2", "node-3"]
    assert all(len(group.device_ids) == 8 for group in groups)


def test_a_name_that_is_not_shipped_names_those_that_are() -> None:
    with pytest.raises(UsageError, match=r"topology h99: cannot be read .*shipped: .*h100-4x8"):
        load_topology(Path("h99"))


def test_memory_and_bandwidth_come_from_the_data_sheet_unless_the_file_says_otherwise() -> None:
    topology = parse_topology(nodes("{name: g, type: H100-SXM5, memory_gb: 40}", "{}"), "t")
    device = topology.devices["n-0/g"]
    assert device.memory_gb == 40
    assert device.bandwidth_gb_per_s == data_sheet("H100-SXM5").bandwidth_gb_per_s


def test_groups_are_successive_devices_of_a_node() -> None:
    topology = parse_topology(nodes("{name: g, count: 4, type: L40S}", "{tensor_parallel: 2}"), "t")
    assert [group.device_ids for group in serving_groups(topology)] == [
        (f"n-{node}/g-{first}", f"n-{node}/g-{first + 1}") for node in (0, 1) for first in (0, 2)
    ]


@pytest.mark.parametrize(
    ("devices", "serving", "message"),
    [
        ("{name: g, count: 4, type: L40S}", "{tensor_parallel: 3}", "tensor_parallel 3: must divide the 4 device"),
        ("{name: g, type: L40S}, {name: h, type: B200}", "{tensor_parallel: 2}", "one type of device"),
    ],
)
def test_devices_that_form_no_domains_are_refused(devices: str, serving: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        serving_groups(parse_topology(nodes(devices, serving), "t"))


def test_a_wrong_serving_key_is_named() -> None:
    with pytest.raises(UsageError, match=r"topology t: serving: .*unknown field `tp`"):
        parse_topology(nodes("{name: g, type: L40S}", "{tp: 2}"), "t")


def test_nodes_that_differ_are_domains_of_several_kinds() -> None:
    groups = serving_groups(load_topology(Path("h100-a100-4x8")))
    fast, slow = groups[0], groups[-1]
    assert [group.kind_id == fast.kind_id for group in groups] == [True, True, False, False]
    assert (fast.serving.max_running, slow.serving.max_running) == (256, 192)
    assert fast.serving.tensor_parallel == slow.serving.tensor_parallel == 8


def test_a_node_s_own_serving_goes_before_the_topology_s() -> None:
    text = """{name: t, serving: {max_running: 9}, nodes: [
        {name: a, devices: [{name: g, count: 4, type: L40S}], serving: {tensor_parallel: 4, precision: float8}},
        {name: b, devices: [{name: g, count: 2, type: L40S}]}]}"""
    groups = serving_groups(parse_topology(text, "t"))
    assert [len(group.device_ids) for group in groups] == [4, 1, 1]
    assert [group.serving.precision for group in groups] == ["float8", None, None]
    assert all(group.serving.max_running == 9 for group in groups)
    assert len({group.kind_id for group in groups}) == 2


def test_what_has_one_latency_model_takes_one_kind() -> None:
    with pytest.raises(UsageError, match=r"domains of 2 kinds \(.*A100.*H100|H100.*A100"):
        one_kind(load_topology(Path("h100-a100-4x8")))
    assert len(one_kind(load_topology(Path("h100-4x8")))) == 4
