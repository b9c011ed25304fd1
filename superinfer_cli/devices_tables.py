"""The tables of `superinfer devices`."""

from __future__ import annotations

from typing import Any

from rich.table import Table


def device_tables(description: dict[str, Any]) -> list[Table]:
    """One table of devices, one of their metrics, one of mechanisms; links where there are any."""
    devices = description["devices"]
    tables = [_devices(devices), _metrics(devices), _mechanisms(description["mechanisms"])]
    if description["links"]:
        tables.insert(1, _links(description["links"]))
    return tables


def _devices(devices: list[dict[str, Any]]) -> Table:
    table = Table("device", "name", "memory", "slices", "partitions", "caches", "GB/s by slices", "reservable GB/s")
    for device in devices:
        curve = ", ".join(_point(point) for point in device["bandwidth_by_slices"])
        reservable = device["reservable_gb_per_s"]
        table.add_row(
            device["device_id"],
            device["name"],
            f"{device['memory_bytes'] / 2**30:.1f} GiB" if device["memory_bytes"] else "unknown",
            f"{device['usable_mask']} of {device['mask']}",
            ", ".join(f"{part['name']} {part['mask']}" for part in device["partitions"]) or "none",
            ", ".join(_cache(cache) for cache in device["caches"] if cache["level"] > 1) or "unknown",
            curve or "not measured",
            "not measured" if reservable is None else f"{reservable:.1f}",
        )
    return table


def _point(point: dict[str, Any]) -> str:
    """Slices and rate; where others had the cores meanwhile, with the share that was left for measuring."""
    busy = f" (with {100 * point['core_share']:.0f} % of the cores)" if point["core_share"] < 0.9 else ""
    return f"{point['slices']}: {point['gb_per_s']:.1f}{busy}"


def _cache(cache: dict[str, Any]) -> str:
    return f"L{cache['level']} {cache['size_bytes'] // 1024} KiB {cache['mask']}"


def _links(links: list[dict[str, Any]]) -> Table:
    table = Table("link", "kind", "GB/s", "distance")
    for link in links:
        rate, distance = link["gb_per_s"], link["relative_distance"]
        table.add_row(
            " – ".join(link["between"]),
            link["kind"],
            "unknown" if rate is None else f"{rate:g}",
            "" if distance is None else str(distance),
        )
    return table


def _metrics(devices: list[dict[str, Any]]) -> Table:
    table = Table("metric", *(device["device_id"] for device in devices))
    for name in devices[0]["metrics"]:
        table.add_row(name, *(_value(device["metrics"][name]) for device in devices))
    return table


def _value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def _mechanisms(mechanisms: list[dict[str, Any]]) -> Table:
    table = Table("mechanism", "what it does", "here", "detail", "to get it")
    for each in mechanisms:
        table.add_row(each["name"], each["does"], each["state"], each["detail"], each["fix"])
    return table
