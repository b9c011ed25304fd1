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

    `device_link_gb_per_s` is None where devices reach each other over the host link alone, `fp8_tflops` and `int8_tops`
    where the device has no such arithmetic, `float32_tflops` where it is half of bf16 (the TF32 of tensor cores).
    """

    source: str
    bf16_tflops: Positive
    fp8_tflops: Positive | None = None
    int8_tops: Positive | None = None
    float32_tflops: Positive | None = None
    memory_gb: Positive
    bandwidth_gb_per_s: Positive
    host_link_gb_per_s: Positive
    device_link_gb_per_s: Positive | None = None

    def peak_tflops(self, dtype: str) -> float:
        """The peak for products of this precision; 8-bit weights are multiplied as bf16 where there is no other way."""
        match dtype:
            case "float32":
                return self.float32_tflops or self.bf16_tflops / 2
            case "float8":
                return self.fp8_tflops or self.bf16_tflops
            case "int8":
                return self.int8_tops or self.bf16_tflops
        return self.bf16_tflops


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
