"""The feature file of one (model, device, precision): static features, measurements, latency model. JSON."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import msgspec

from superinfer.contracts.errors import ModelError
from superinfer.profiler.architecture import ModelArchitecture
from superinfer.profiler.cache import cache_dir
from superinfer.profiler.drift import StepNoise
from superinfer.profiler.latency_model import LatencyModel, StepShape
from superinfer.profiler.static import StaticFeatures

PROFILE_SCHEMA = "superinfer.profile/1"


class DeviceFeatures(msgspec.Struct, frozen=True, kw_only=True):
    """What the steps were measured on; `memory_read_gb_per_s` is what `threads` threads read from memory."""

    name: str
    threads: int
    memory_read_gb_per_s: float | None = None


class LatencyConstants(msgspec.Struct, frozen=True, kw_only=True):
    """`LatencyModel` as it is stored; quantiles as (quantile, measured / predicted)."""

    launch_s: float
    linear_points: list[tuple[float, float]]
    decode_context_s: float
    decode_s: float
    prefill_pair_s: float
    chunk_s: float
    row_s: float
    head_s: float = 0.0
    residual_quantiles: list[tuple[float, float]]


class MeasuredPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One step shape (the fields of StepShape), every time measured for it, and when in the sweep each was."""

    name: str
    tokens: int
    decodes: int
    decode_context: int
    prefill_pairs: float
    rows: int
    chunks: int
    seconds: list[float]
    at_s: list[float] = []

    @property
    def shape(self) -> StepShape:
        """The step as the latency model sees it."""
        return StepShape(self.tokens, self.decodes, self.decode_context, self.prefill_pairs, self.rows, self.chunks)


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """The sweep: its points, and the best rates achieved in prefill (arithmetic) and decode (reads).

    `waited_share` is the share of the steps' time in which other processes had the worker's core; the points'
    times are without it.
    """

    points: list[MeasuredPoint]
    wall_s: float
    prefill_gflop_per_s: float
    decode_gb_per_s: float
    waited_share: float = 0.0


class FitErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Relative error |predicted − measured| / measured over steps that the fit had not seen.

    `tracked_` are those with the online correction, as while serving; None where it is not known in which order the
    steps were measured.
    """

    steps: int
    shapes: int
    median_relative_error: float
    p90_relative_error: float
    tracked_median_relative_error: float | None = None
    tracked_p90_relative_error: float | None = None


class ModelProfile(msgspec.Struct, frozen=True, kw_only=True, rename={"format": "schema"}):
    """One feature file. `created` is ISO 8601 in UTC; `noise` is that of step times, where it could be told.

    `weight_dtype` is the precision in which a worker holds the weights, where it is not `dtype`, that of computation.
    """

    model: str
    dtype: str
    device: DeviceFeatures
    created: str
    architecture: ModelArchitecture
    static: StaticFeatures
    measured: Measurement
    latency: LatencyConstants
    fit: FitErrors
    noise: StepNoise | None = None
    weight_dtype: str | None = None
    format: str = PROFILE_SCHEMA

    @property
    def precision(self) -> str:
        """The precision of computation, and that of the weights where it is another, for a person."""
        return self.dtype if self.weight_dtype is None else f"{self.dtype}, {self.weight_dtype} weights"

    @property
    def latency_model(self) -> LatencyModel:
        """A fresh latency model with these constants and no online correction."""
        constants = msgspec.structs.asdict(self.latency)
        constants["residual_quantiles"] = dict(self.latency.residual_quantiles)
        return LatencyModel(**constants)


def latency_constants(model: LatencyModel) -> LatencyConstants:
    """What is stored of a latency model; its online correction is not."""
    return LatencyConstants(
        launch_s=model.launch_s,
        linear_points=model.linear_points,
        decode_context_s=model.decode_context_s,
        decode_s=model.decode_s,
        prefill_pair_s=model.prefill_pair_s,
        chunk_s=model.chunk_s,
        row_s=model.row_s,
        head_s=model.head_s,
        residual_quantiles=sorted(model.residual_quantiles.items()),
    )


def profile_path(model_name: str, device: str, dtype: str, threads: int) -> Path:
    """Where the profile of (model, device, precision, threads) is cached."""
    parts = (model_name, device, f"{threads}-threads", dtype)
    return cache_dir() / "profiles" / ("--".join(_slug(part) for part in parts) + ".json")


def save_profile(path: Path, profile: ModelProfile) -> None:
    """Write the profile; a reader sees the old file or the whole new one."""
    text = msgspec.json.format(msgspec.json.encode(profile), indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text + b"\n")
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def load_profile(path: Path) -> ModelProfile:
    """Read a profile; ModelError says what is wrong with the file and how to make a new one."""
    remedy = "make one with: superinfer profile MODEL"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"profile {path} cannot be read ({error.strerror}); {remedy}") from None
    try:
        schema = msgspec.json.decode(data, type=_SchemaOnly).schema
        if schema != PROFILE_SCHEMA:
            raise ModelError(f"profile {path} has schema {schema!r}, not {PROFILE_SCHEMA!r}; {remedy}")
        profile = msgspec.json.decode(data, type=ModelProfile)
        profile.latency_model  # noqa: B018  (its own checks, now rather than in the scheduler)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ModelError(f"profile {path} is not valid: {error}; {remedy}") from None
    return profile


class _SchemaOnly(msgspec.Struct):
    schema: str = ""


def _slug(text: str) -> str:
    return re.sub(r"[^a-zA-Z0-9.]+", "-", text).strip("-.").lower() or "unnamed"
