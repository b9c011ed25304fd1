"""The long form of a contract as it is written. A field left out (or null) is not said: it is inherited or default.

Every field says in `accepts` what it takes; error messages quote it.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from superinfer.contracts.naming import ID_ACCEPTS, ID_PATTERN, MAX_ID_LENGTH

PERCENTILES = {"p50_ms": 0.50, "p90_ms": 0.90, "p95_ms": 0.95, "p99_ms": 0.99, "p999_ms": 0.999}


class _Strict(BaseModel):
    """Unknown keys are errors, and text is not taken for a number or a number for a truth value."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _positive(description: str) -> Any:
    return Field(
        None, gt=0, allow_inf_nan=False, description=description, json_schema_extra={"accepts": "a number > 0"}
    )


def _flag(description: str) -> Any:
    return Field(None, description=description, json_schema_extra={"accepts": "true or false"})


def _mapping(description: str, default: Any = None) -> Any:
    return Field(default, description=description, json_schema_extra={"accepts": "a mapping"})


def _service_id(default: Any, description: str) -> Any:
    return Field(
        default,
        pattern=ID_PATTERN,
        max_length=MAX_ID_LENGTH,
        description=description,
        json_schema_extra={"accepts": ID_ACCEPTS},
    )


class Bounds(_Strict):
    """Upper bounds of a time, in milliseconds, by percentile of all requests."""

    p50_ms: float | None = _positive("half of the requests take at most this long")
    p90_ms: float | None = _positive("90 % of the requests take at most this long")
    p95_ms: float | None = _positive("95 % of the requests take at most this long")
    p99_ms: float | None = _positive("99 % of the requests take at most this long")
    p999_ms: float | None = _positive("99.9 % of the requests take at most this long")


class LatencyBounds(Bounds):
    """Bounds of the whole request, or of its first token where `of` is ttft."""

    max_jitter_ms: float | None = _positive("standard deviation of the latency at most")
    of: Literal["e2e", "ttft"] = Field(
        "e2e",
        description="what is bounded: the whole request (e2e) or the first token (ttft)",
        json_schema_extra={"accepts": "e2e or ttft"},
    )


class Fallback(_Strict):
    """What may happen to a request that cannot be served in time."""

    allowed: bool | None = _flag("another service may answer instead")
    alternative_service: str | None = _service_id(None, "the registered service that answers instead")


class SLO(_Strict):
    """What is promised."""

    latency: LatencyBounds | None = _mapping("end-to-end latency")
    ttft: Bounds | None = _mapping("time to first token")
    tpot: Bounds | None = _mapping("mean time per output token after the first")
    availability: float | None = Field(
        None,
        gt=0,
        lt=1,
        allow_inf_nan=False,
        description="share of the requests that are answered",
        json_schema_extra={"accepts": "a number between 0 and 1, such as 0.999"},
    )
    fallback: Fallback | None = _mapping("whether and where a request may be degraded to")
    precision_loss_allowed: bool | None = _flag("the model may run at a lower precision (FP8, INT8)")


class SubSLO(SLO):
    """A named sub-task of a service, with bounds of its own; what it does not say is the service's."""

    description: str = Field("", description="for people", json_schema_extra={"accepts": "text"})


class Resources(_Strict):
    """What a service asks of the devices that serve it."""

    min_gpu_count: int | None = Field(
        None, ge=1, le=1_000_000, description="devices at least", json_schema_extra={"accepts": "a whole number >= 1"}
    )
    preferred_gpu_type: str | None = Field(
        None, min_length=1, description="such as H100-SXM5", json_schema_extra={"accepts": "text"}
    )
    memory_per_gpu_mb: float | None = _positive("memory per device at least, in MB")
    reserved_bandwidth_gb_per_s: float | None = _positive(
        "memory bandwidth kept for the service on each device on which one of its requests runs"
    )


class ContractDocument(_Strict):
    """One service's contract."""

    service_id: str = _service_id(..., "names the service; a child's id is its parent's, '-', and its own part")
    description: str = Field("", description="for people", json_schema_extra={"accepts": "text"})
    slo: SLO = _mapping("what is promised", ...)
    resource_constraints: Resources | None = _mapping("what the service asks of its devices")
    priority: float | None = _positive("weight against other contracts of the same urgency; 1 by default")
    sub_slos: dict[str, SubSLO] = Field(
        {}, description="sub-tasks by name", json_schema_extra={"accepts": "a mapping of sub-task names to their SLOs"}
    )
