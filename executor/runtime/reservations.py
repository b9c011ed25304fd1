"""Reservations through a runtime: the scheduler's ledger, with this machine's clock and errors in place of answers."""

from __future__ import annotations

import time
from collections.abc import Callable

from superinfer.executor.runtime.errors import BandwidthRefusedError
from superinfer.scheduler.ledger import BandwidthLedger, BandwidthRefusal, Priority, Reservation


class LedgerReservations:
    """The part of `DeviceRuntime` that is the same for every vendor. `clock` is the ledger's, in seconds."""

    def __init__(self, ledger: BandwidthLedger | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.ledger = ledger or BandwidthLedger([])
        self._clock = clock

    def reserve(
        self,
        device_id: str,
        bandwidth_gb_per_s: float,
        duration_ms: float,
        priority: Priority = Priority.NORMAL,
        *,
        owner: str = "",
    ) -> Reservation:
        """Hold a rate from now on; raises BandwidthRefusedError and UsageError."""
        granted = self.ledger.reserve(device_id, bandwidth_gb_per_s, duration_ms, priority, owner, self._clock())
        if isinstance(granted, BandwidthRefusal):
            raise BandwidthRefusedError(granted)
        return granted

    def release(self, reservation: Reservation) -> bool:
        """End a reservation; False where it has ended already."""
        return self.ledger.release(reservation.reservation_id, self._clock())
