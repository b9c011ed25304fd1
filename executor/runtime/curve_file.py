"""Measured bandwidth curves, kept between runs: measuring takes the whole device for a second."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import msgspec

from superinfer.executor.runtime.base import DeviceRuntime
from superinfer.executor.runtime.description import BandwidthPoint, Device
from superinfer.profiler.cache import cache_dir

KEPT_SHARE = 0.9
"""A curve with less of the cores in any point is measured again in the next run."""


def curve_path(vendor: str, device: Device) -> Path:
    """Where the curve of this device, as far as this process may use it, is kept."""
    name = f"{vendor}--{device.device_id}--{device.name}--{device.usable_mask:#x}"
    return cache_dir() / "devices" / (re.sub(r"[^a-zA-Z0-9.]+", "-", name).strip("-").lower() + ".json")


def load_curve(vendor: str, device: Device) -> list[BandwidthPoint]:
    """The kept curve; empty where there is none, or none that can be true."""
    try:
        curve = msgspec.json.decode(curve_path(vendor, device).read_bytes(), type=list[BandwidthPoint])
    except (OSError, UnicodeDecodeError, msgspec.MsgspecError):
        return []
    return curve if all(point.mask > 0 and point.gb_per_s > 0.0 for point in curve) else []


def save_curve(vendor: str, device: Device, curve: list[BandwidthPoint]) -> None:
    """Keep a curve; a reader sees the old one or the whole new one. Where it cannot be kept it is measured again."""
    path = curve_path(vendor, device)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.partial")  # others may measure at the same time
        partial.write_bytes(msgspec.json.encode(curve))
        partial.replace(path)


def ensure_curves(runtime: DeviceRuntime) -> dict[str, list[BandwidthPoint]]:
    """The curve of every device that this process may use, by id; measured where none was kept."""
    curves = {}
    for device in runtime.topology().devices:
        if not device.usable_mask:
            continue
        if not (curve := load_curve(runtime.vendor, device)):
            curve = runtime.bandwidth_curve(device.device_id)
            # What was measured on a busy machine is too low to go by for good.
            if all(point.core_share >= KEPT_SHARE for point in curve):
                save_curve(runtime.vendor, device, curve)
        curves[device.device_id] = curve
    return curves
