"""Health of a CPU: what has changed in its sensors since the last look, as events."""

from __future__ import annotations

from superinfer.executor.runtime.cpu_sensors import CpuSensors
from superinfer.executor.runtime.description import HealthEvent, mask_of


class CpuHealth:
    """Compares sensors with what they said before; the first look is the base. A core that went off tells once."""

    def __init__(self, device_id: str, cores: list[int], sensors: CpuSensors) -> None:
        self._device_id = device_id
        self._cores = cores
        self._sensors = sensors
        self._errors = sensors.memory_errors()
        self._throttles = sensors.throttle_count(cores)
        self._offline = set(sensors.offline(cores))

    def events(self, now: float) -> list[HealthEvent]:
        """What has happened since the last call."""
        return [*self._memory_events(now), *self._throttle_events(now), *self._offline_events(now)]

    def _memory_events(self, now: float) -> list[HealthEvent]:
        before, self._errors = self._errors, self._sensors.memory_errors()
        if before is None or self._errors is None:
            return []
        corrected, uncorrected = (count - old for count, old in zip(self._errors, before, strict=True))
        events = []
        if uncorrected > 0:
            # Any process's pages may be hit: nothing on this memory can be trusted.
            events.append(self._event("memory_error", "fatal", f"{uncorrected} uncorrected memory errors", now))
        if corrected > 0:
            events.append(self._event("memory_error", "warning", f"{corrected} corrected memory errors", now))
        return events

    def _throttle_events(self, now: float) -> list[HealthEvent]:
        before, self._throttles = self._throttles, self._sensors.throttle_count(self._cores)
        if before is None or self._throttles is None or self._throttles <= before:
            return []
        detail = f"cores were throttled for heat {self._throttles - before} times"
        return [self._event("thermal_throttle", "warning", detail, now)]

    def _offline_events(self, now: float) -> list[HealthEvent]:
        before, self._offline = self._offline, set(self._sensors.offline(self._cores))
        if not (gone := sorted(self._offline - before)):
            return []
        detail = f"cores {gone} were switched off"
        return [self._event("cores_offline", "fatal", detail, now, mask_of(gone))]

    def _event(self, kind: str, severity: str, detail: str, now: float, mask: int = 0) -> HealthEvent:
        return HealthEvent(
            device_id=self._device_id,
            kind=kind,
            severity=severity,  # type: ignore[arg-type]
            detail=f"{self._device_id}: {detail}",
            time_s=now,
            mask=mask,
        )
