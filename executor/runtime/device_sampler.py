"""The figures that the devices of a runtime have, as often as anybody asks and measured at most once a second."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from superinfer.executor.runtime.base import DeviceRuntime

SAMPLE_S = 1.0
"""Rates over less than this say little."""

Figures = dict[str, float | str | list[str]]


class DeviceSampler:
    """Reads `DeviceMetrics` of all devices. Rates are over the time since the sample before."""

    def __init__(self, runtime: DeviceRuntime, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._runtime = runtime
        self._clock = clock
        self._device_ids = [device.device_id for device in runtime.topology().devices]
        self._latest: dict[str, Figures] = {}
        self._due_s = self._clock()
        self.figures()  # rates need a sample before the first that anybody sees

    def figures(self) -> dict[str, Figures]:
        """By device id and name of the figure, those that the device has."""
        now = self._clock()
        if now >= self._due_s:
            self._due_s = now + SAMPLE_S
            self._latest = {device_id: self._sample(device_id) for device_id in self._device_ids}
        return self._latest

    def _sample(self, device_id: str) -> Figures:
        metrics = msgspec.structs.asdict(self._runtime.metrics(device_id))
        return {name: value for name, value in metrics.items() if value is not None}
