"""The engine's view of its devices: which one a worker computes on, how fast its memory is, whether it is well."""

from __future__ import annotations

from pathlib import Path

from superinfer.executor.config import DType
from superinfer.executor.runtime.base import DeviceRuntime
from superinfer.executor.runtime.curve_file import load_curve
from superinfer.executor.runtime.description import Device, HealthEvent, mask_of
from superinfer.profiler.static import HELD_BYTES_PER_WEIGHT

LOOK_S = 1.0
"""Between two looks at the health of devices; a process's own death is noticed at once, without this."""

STORED_BYTES = 2
"""Of a weight where there is no checkpoint to tell: random weights are bfloat16."""


class DeviceWatch:
    """Asks a device runtime now and then. Workers without cores of their own count as on the first device."""

    def __init__(self, runtime: DeviceRuntime) -> None:
        self._runtime = runtime
        self._devices = runtime.topology().devices
        self.next_look_s = 0.0

    def bandwidth_of(self, cores: list[int]) -> tuple[str, float | None]:
        """The device of a worker on these cores, and its bandwidth by all cores, None where nobody has measured it."""
        device = self.device_of(cores)
        curve = load_curve(self._runtime.vendor, device)
        return device.device_id, max((point.gb_per_s for point in curve), default=None)

    def look(self, now: float) -> list[HealthEvent]:
        """What has happened since the last look, empty until the next one is due."""
        if now < self.next_look_s:
            return []
        self.next_look_s = now + LOOK_S
        return self._runtime.health_events()

    def is_hit(self, event: HealthEvent, cores: list[int]) -> bool:
        """Whether a worker on these cores computes on what an event is about."""
        if event.device_id != self.device_of(cores).device_id:
            return False
        return not event.mask or not cores or bool(event.mask & mask_of(cores))

    def close(self) -> None:
        """Undo what the runtime has set."""
        self._runtime.close()

    def device_of(self, cores: list[int]) -> Device:
        """The device of a worker on these cores."""
        mask = mask_of(cores)
        return next((device for device in self._devices if device.mask & mask), self._devices[0])


def stored_weight_bytes(model_dir: Path, parameters: int, dtype: DType = "auto") -> float:
    """What a step reads of the weights: their size as stored, which is how the kernels read all but int8."""
    if dtype == "int8":
        return HELD_BYTES_PER_WEIGHT["int8"] * parameters
    stored = sum(file.stat().st_size for file in model_dir.glob("*.safetensors"))
    return float(stored or STORED_BYTES * parameters)
