"""What vendors publish of a device, for predictions on hardware that nobody has measured: `devices.yaml`."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Annotated

import msgspec
import yaml
from msgspec import Meta

from superinfer.contracts.errors import UsageError

Positive = Annotated[float, Meta(gt=0)]


class DataSheet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Published peaks of one device and the page that holds them. TFLOPS are dense, links per direction, GB 10⁹ bytes.

    `device_link_gb_per_s` is None where devices reach each other over the host link alone.
    """

    source: str
    bf16_tflops: Positive
    memory_gb: Positive
    bandwidth_gb_per_s: Positive
    host_link_gb_per_s: Positive
    device_link_gb_per_s: Positive | None = None


def data_sheet(device_type: str) -> DataSheet:
    """The data sheet of a device type; UsageError names the types that have one."""
    sheets = data_sheets()
    if device_type not in sheets:
        raise UsageError(f"device type {device_type!r} has no data sheet; known: {', '.join(sheets)}")
    return sheets[device_type]


@cache
def data_sheets() -> dict[str, DataSheet]:
    """All data sheets by device type."""
    text = resources.files("superinfer.profiler").joinpath("devices.yaml").read_text("utf-8")
    return msgspec.convert(yaml.safe_load(text), dict[str, DataSheet])
