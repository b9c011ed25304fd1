"""Faults of simulated domains: when one dies, when that is noticed, when it serves again."""

from __future__ import annotations

from dataclasses import dataclass

DETECTION_S = 0.005
"""From a domain's death to the scheduler's knowing: workers are watched through their process sentinel, which takes
about a millisecond, and requests in flight are gathered."""


@dataclass(frozen=True, slots=True)
class DomainFault:
    """A domain dies at `time_s` with everything on it and serves again, with an empty cache, `restart_s` later.

    Its step in flight never ends. The scheduler is told `detection_s` after the death.
    """

    time_s: float
    domain_id: str
    restart_s: float
    detection_s: float = DETECTION_S


@dataclass(slots=True)
class FaultRecord:
    """What a fault did: requests moved to other domains (or waiting for one), rows of the requests open at the time.

    `ready_s` is when the domain served again; None where the run ended before.
    """

    fault: DomainFault
    moved_requests: int
    open_rows: list[int]
    detected_s: float | None = None
    ready_s: float | None = None
