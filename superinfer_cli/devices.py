"""`superinfer devices`: what this machine computes on, how fast its memory is, and what can be promised on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from superinfer.executor.runtime.base import DeviceRuntime

SAMPLE_S = 0.5
"""Time between the two samples that rates are made of."""


def devices(
    measure: Annotated[
        bool, typer.Option(help="Measure memory bandwidth by number of cores (a second or two at full load).")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of tables.")] = False,
) -> None:
    """Show devices, partitions, measured bandwidth, metrics, and which mechanisms can be used here."""
    from superinfer.cli.console import out
    from superinfer.executor.runtime.cpu import CpuRuntime

    description = describe(CpuRuntime(), measure=measure)
    if as_json:
        import json

        typer.echo(json.dumps(description, indent=2))
        return
    from superinfer.cli.devices_tables import device_tables

    for table in device_tables(description):
        out.print(table)


def describe(runtime: DeviceRuntime, *, measure: bool) -> dict[str, Any]:
    """Everything a runtime says, as JSON: masks as hexadecimal strings, what a device does not have as null."""
    import time

    import msgspec

    topology = runtime.topology()
    ids = [device.device_id for device in topology.devices]
    for device_id in ids:
        runtime.metrics(device_id)  # rates count from here
    curves = {each: runtime.bandwidth_curve(each) if measure else [] for each in ids}
    time.sleep(SAMPLE_S)
    described: list[dict[str, Any]] = msgspec.to_builtins(topology.devices)
    for entry in described:
        for part in (entry, *entry["partitions"], *entry["caches"]):
            part.update({key: hex(part[key]) for key in ("mask", "usable_mask") if key in part})
        points = curves[entry["device_id"]]
        entry["bandwidth_by_slices"] = [
            {
                "slices": point.slices,
                "mask": hex(point.mask),
                "gb_per_s": point.gb_per_s,
                "core_share": point.core_share,
            }
            for point in points
        ]
        entry["reservable_gb_per_s"] = runtime.ledger.reservable_gb_per_s(entry["device_id"]) if points else None
        entry["metrics"] = msgspec.to_builtins(runtime.metrics(entry["device_id"]))
    return {
        "vendor": runtime.vendor,
        "devices": described,
        "links": msgspec.to_builtins(topology.links),
        "mechanisms": msgspec.to_builtins(runtime.mechanisms()),
    }
