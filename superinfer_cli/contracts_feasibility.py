"""The feasibility part of `superinfer contracts check`: bounds beside the unloaded times of a profiled model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from superinfer.contracts.contract import SLOContract
    from superinfer.executor.config import DType
    from superinfer.profiler.feasibility import BoundCheck
    from superinfer.profiler.store import ModelProfile


def cached_profile(model: str, dtype: DType) -> ModelProfile:
    """The profile of a model measured on this device earlier; nothing is fetched or measured. Raises ModelError."""
    from superinfer.contracts.errors import ModelError
    from superinfer.executor.models import local
    from superinfer.executor.models.catalog import KNOWN_MODELS
    from superinfer.executor.profile_model import THREADS, resolve_dtype
    from superinfer.profiler.architecture import load_architecture
    from superinfer.profiler.device import device_name
    from superinfer.profiler.store import load_profile, profile_path

    directory = Path(model).expanduser()
    source = local.resolve(directory) if model not in KNOWN_MODELS and directory.exists() else None
    name = model if source is None else source.name
    path = profile_path(name, device_name(), resolve_dtype(dtype), THREADS)
    remedy = f"make one with: superinfer profile {model}"
    if not path.exists():
        raise ModelError(f"{model} has no profile on this device yet ({path}); {remedy}")
    profile = load_profile(path)
    if source is not None and profile.architecture != load_architecture(source.directory):
        raise ModelError(f"the profile {path} is of another model named {name}; {remedy}")
    return profile


def check_contracts(
    contracts: list[SLOContract], profile: ModelProfile, prompt_tokens: int, output_tokens: int
) -> list[BoundCheck]:
    """Every bound of the contracts against a request of this size."""
    from superinfer.profiler.feasibility import check_bounds

    model = profile.latency_model
    return [check for contract in contracts for check in check_bounds(contract, model, prompt_tokens, output_tokens)]


def feasibility_table(checks: list[BoundCheck], table: Table) -> Table:
    """Fill a table of six columns."""
    from superinfer.profiler.feasibility import percentile_digits

    for check in checks:
        table.add_row(
            check.contract_id,
            f"{check.milestone} p{percentile_digits(check.percentile)}",
            f"{check.bound_ms:g}",
            f"{check.unloaded_ms:.4g}",
            f"{check.bound_ms / check.unloaded_ms:.2f}",
            "yes" if check.attainable else "NO",
        )
    return table


def as_data(check: BoundCheck) -> dict[str, Any]:
    """A check as JSON."""
    from dataclasses import asdict

    return {**asdict(check), "attainable": check.attainable}
