"""The 17 figures that every device is asked for. None where a device has no such figure, never zero."""

from __future__ import annotations

import msgspec


class DeviceMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One sample of one device; percentages are of the time or the peak since the sample before.

    `clock_throttle_reasons` is empty where the device can tell and none applies. `recovery_state` is "ok", or what
    of ECC, row remapping and recovery needs attention.
    """

    device_utilization_percent: float | None = None
    sm_utilization_percent: float | None = None
    sm_occupancy_percent: float | None = None
    tensor_utilization_percent: float | None = None
    memory_bandwidth_utilization_percent: float | None = None
    memory_used_bytes: int | None = None
    pcie_tx_bytes_per_s: float | None = None
    pcie_rx_bytes_per_s: float | None = None
    nvlink_tx_bytes_per_s: float | None = None
    nvlink_rx_bytes_per_s: float | None = None
    kernel_launch_latency_us: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    clock_throttle_reasons: list[str] | None = None
    recovery_state: str | None = None


METRIC_NAMES: tuple[str, ...] = DeviceMetrics.__struct_fields__
"""All figures, in the order in which they are reported."""
