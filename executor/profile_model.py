"""Measure one model on this machine: a worker process as in serving, the sweep, the fit, the feature record."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path

from superinfer.contracts.errors import ModelError
from superinfer.executor.config import DType, WorkerConfig
from superinfer.executor.core_wait import core_wait_s
from superinfer.executor.cores import assign_cores
from superinfer.executor.models.source import ModelSource
from superinfer.executor.sweep import HOST_BLOCKS, SweepRunner
from superinfer.executor.worker_process import WorkerProcess
from superinfer.profiler.architecture import ModelArchitecture, load_architecture, stored_dtype
from superinfer.profiler.device import device_name, memory_read_gb_per_s
from superinfer.profiler.fit import fit_points
from superinfer.profiler.measure import DEFAULT_BUDGET_S, Progress, achieved_rates, measure
from superinfer.profiler.static import static_features
from superinfer.profiler.store import (
    DeviceFeatures,
    MeasuredPoint,
    Measurement,
    ModelProfile,
    latency_constants,
)
from superinfer.profiler.sweep_log import SweepLog, SweepSubject
from superinfer.profiler.sweep_points import SweepLimits, sweep_points

THREADS = 1
"""Threads of a worker, in profiling as in serving."""

BFLOAT16_FLAGS = {"avx512_bf16", "amx_tile"}
"""A CPU with any of these multiplies bfloat16."""


def resolve_dtype(dtype: DType, cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The precision that a worker stores its weights in on this machine, as `model_runner.weight_dtype`.

    The CPU's flags say so without torch, whose import takes longer than all else that a command does before an engine
    starts.
    """
    if dtype != "auto":
        return dtype
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return "bfloat16" if BFLOAT16_FLAGS & set(flags) else "float32"


def held_dtypes(source: ModelSource, dtype: DType) -> tuple[str, str | None]:
    """The precision of a worker's cache, and that of its weights where it is another.

    Next to float32 these are int8 where that is asked for, and a stored bfloat16 stays one, as random weights are.
    """
    if dtype == "int8":
        return "float32", "int8"
    computed = resolve_dtype(dtype)
    stored = stored_dtype(source.directory) if source.has_weights else "bfloat16"
    return computed, "bfloat16" if computed == "float32" and stored == "bfloat16" else None


def profile_model(
    source: ModelSource,
    dtype: DType,
    *,
    random_weights: bool = False,
    budget_s: float = DEFAULT_BUDGET_S,
    progress: Progress | None = None,
    log_path: Path | None = None,
) -> ModelProfile:
    """Start a worker on the core it would serve on, run the sweep within `budget_s`, fit.

    The budget does not include the time to load the model. With a `log_path` an interrupted sweep of the same model
    goes on where it was. Raises ModelError, ResourceError, EngineError, or OSError where the log cannot be written.
    """
    architecture = load_architecture(source.directory)
    source.check_weights(random_weights=random_weights)
    config = WorkerConfig(
        domain_id="profile",
        model_dir=str(source.directory),
        dtype=dtype,
        random_weights=random_weights,
        host_blocks=HOST_BLOCKS,
        threads=THREADS,
        cores=assign_cores(1, sorted(os.sched_getaffinity(0)))[0][0],
    )
    resolved = resolve_dtype(dtype)
    subject = SweepSubject(
        model=source.name, architecture=architecture, dtype=resolved, device=device_name(), threads=THREADS
    )
    log = None if log_path is None else SweepLog(log_path, subject)
    memory_gb_per_s = memory_read_gb_per_s()
    points, wall_s, waited_share = _sweep(config, architecture, budget_s, progress, log)
    try:
        fit = fit_points(points)
    except ValueError as error:
        raise ModelError(f"{source.name} cannot be profiled: {error}") from None
    if log is not None:
        log.remove()
    computed, weight_dtype = held_dtypes(source, dtype)
    prefill_gflop_per_s, decode_gb_per_s = achieved_rates(points, architecture, computed, weight_dtype)
    return ModelProfile(
        model=source.name,
        dtype=computed,
        device=DeviceFeatures(name=subject.device, threads=THREADS, memory_read_gb_per_s=memory_gb_per_s),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        architecture=architecture,
        static=static_features(architecture, computed, weight_dtype=weight_dtype),
        measured=Measurement(
            points=points,
            wall_s=wall_s,
            waited_share=waited_share,
            prefill_gflop_per_s=prefill_gflop_per_s,
            decode_gb_per_s=decode_gb_per_s,
        ),
        latency=latency_constants(fit.model),
        fit=fit.errors,
        noise=fit.noise,
        weight_dtype=weight_dtype,
    )


def _sweep(
    config: WorkerConfig,
    architecture: ModelArchitecture,
    budget_s: float,
    progress: Progress | None,
    log: SweepLog | None,
) -> tuple[list[MeasuredPoint], float, float]:
    """The points, the sweep's wall time, and the share of step time that other processes took."""
    with WorkerProcess(config) as worker:
        ready = worker.wait_ready()
        started_s = time.monotonic()
        limits = SweepLimits(
            max_step_tokens=config.max_step_tokens,
            max_model_len=ready.max_model_len,
            kv_blocks=ready.kv_blocks,
            block_size=config.block_size,
        )
        run_point = SweepRunner(
            worker,
            vocab_size=architecture.vocab_size,
            block_size=config.block_size,
            domain_id=config.domain_id,
            waited_s=lambda: core_wait_s(ready.pid),
        )
        points = sweep_points(limits)
        spent_s = 0.0 if log is None else log.spent_s
        measured = measure(
            points,
            run_point,
            budget_s=max(budget_s - spent_s, 0.0),
            progress=progress,
            known=None if log is None else log.known(points),
            record=None if log is None else log.append,
        )
        return measured, spent_s + time.monotonic() - started_s, run_point.waited_share
