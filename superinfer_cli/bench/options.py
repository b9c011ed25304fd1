"""What the command line of `superinfer bench` asks for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from superinfer.cli.domain_kinds import KindOptions
from superinfer.executor.config import Checkpoint, DType

DEFAULT_MODEL = "smollm2-135m-instruct"
CLUSTER_MODEL = "llama-3-70b"
"""The model of a simulated cluster where none is named."""


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What the command line asks for; None leaves a value to the scenario, or the model to a default."""

    scenario: str
    policies: list[str]
    model: str | None = None
    requests: int | None = None
    load: float | None = None
    rate_rps: float | None = None
    seed: int = 0
    domains: int | None = None
    kinds: tuple[KindOptions, ...] = ()
    fault_domains: Path | None = None
    admission: Literal["accept", "refuse"] = "accept"
    slo_scale: float = 1.0
    dtype: DType = "auto"
    random_weights: bool = False
    kv_cache_bytes: int | None = None
    host_kv_memory: str | None = None
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    prefix_cache: bool = False
    decay_profile: Path | None = None
    out: Path | None = None
    force: bool = False
    simulate: bool = False
    topology: Path | None = None
    calibrate_from: tuple[Path, ...] = ()
    journal: bool = False
