"""The compiled, immutable form of an SLO contract: what the scheduler and the executor read."""

from __future__ import annotations

import msgspec


class Bound(msgspec.Struct, frozen=True, order=True):
    """At `percentile` (0 < percentile < 1) of all requests the measured time is at most `bound_ms`."""

    percentile: float
    bound_ms: float


class ResourceConstraints(msgspec.Struct, frozen=True, kw_only=True):
    """What a service asks of the devices that serve it.

    `reserved_bandwidth_gb_per_s` is the memory bandwidth kept for it on each device on which one of its requests runs.
    """

    min_gpu_count: int = 1
    preferred_gpu_type: str | None = None
    memory_per_gpu_mb: float | None = None
    reserved_bandwidth_gb_per_s: float | None = None


class SLOContract(msgspec.Struct, frozen=True, kw_only=True):
    """One service's contract after validation. Bounds are sorted by percentile, ascending.

    An empty tuple of bounds means that nothing was promised for that milestone; a contract with no bounds at
    all is best effort.
    """

    service_id: str
    version: int = 1
    description: str = ""
    latency: tuple[Bound, ...] = ()
    ttft: tuple[Bound, ...] = ()
    tpot: tuple[Bound, ...] = ()
    max_jitter_ms: float | None = None
    availability: float | None = None
    fallback_allowed: bool = False
    alternative_service: str | None = None
    precision_loss_allowed: bool = False
    priority: float = 1.0
    resources: ResourceConstraints = ResourceConstraints()
    sub_slos: dict[str, SLOContract] = {}

    @property
    def deadline_ms(self) -> float | None:
        """End-to-end bound that a single request is held to: the one at the highest percentile."""
        return self.latency[-1].bound_ms if self.latency else None

    @property
    def ttft_deadline_ms(self) -> float | None:
        """Time to first token that a single request is held to, or None."""
        return self.ttft[-1].bound_ms if self.ttft else None

    @property
    def tpot_deadline_ms(self) -> float | None:
        """Mean time per output token after the first that a single request is held to, or None."""
        return self.tpot[-1].bound_ms if self.tpot else None

    @property
    def is_best_effort(self) -> bool:
        """True where no milestone is bounded."""
        return not (self.latency or self.ttft or self.tpot)


BEST_EFFORT_ID = "best-effort"


def best_effort_contract() -> SLOContract:
    """The contract of requests that name none: it promises nothing, not even a precision."""
    return SLOContract(
        service_id=BEST_EFFORT_ID, description="requests without a contract", precision_loss_allowed=True
    )
