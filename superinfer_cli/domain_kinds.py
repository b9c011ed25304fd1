"""Domains of several kinds as the command line and a YAML file say them, and what an engine is told of them.

domain_kinds:
  exact: {dtype: float32, domains: 1}
  quick: {dtype: int8, domains: 2, kv_cache_memory: 512MiB, host_kv_memory: 1GiB, max_running: 16}
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from superinfer.cli.console import err
from superinfer.cli.host_memory import host_blocks
from superinfer.cli.profile import ensure_profile
from superinfer.cli.serve.sizes import parse_bytes
from superinfer.contracts.contract import SLOContract
from superinfer.contracts.errors import UsageError
from superinfer.contracts.printable import shown
from superinfer.contracts.yaml_reader import read_settings
from superinfer.executor.config import DomainGroup, DType
from superinfer.executor.models.source import ModelSource
from superinfer.executor.profile_model import resolve_dtype
from superinfer.profiler.latency_model import LatencyModel
from superinfer.profiler.static import BYTES_PER_ELEMENT
from superinfer.profiler.store import load_profile
from superinfer.scheduler.domain_kind import DomainKind, speed_rank

DTYPES: tuple[str, ...] = get_args(DType)
MOST_DOMAINS = 4096
MOST = MOST_DOMAINS * 256
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SECTION = "domain_kinds"
COUNTS = ("domains", "max_running", "max_step_tokens")
SIZES = ("kv_cache_memory", "host_kv_memory")
ACCEPTED = ("dtype", *COUNTS, *SIZES)


@dataclass(frozen=True, slots=True)
class KindOptions:
    """What somebody asks of the domains of one kind; None leaves a limit to what is said of all."""

    name: str
    dtype: DType
    domains: int
    kv_cache_bytes: int | None = None
    host_kv_memory: str | None = None
    max_running: int | None = None
    max_step_tokens: int | None = None


def asked_kinds(flags: Sequence[str] | None, file: Path | None, domains: int | None) -> list[KindOptions]:
    """The kinds of `--domain-kind` or `--domains-file`; empty without them. UsageError names flag or file and key."""
    if not flags and file is None:
        return []
    if flags and file is not None:
        raise UsageError("--domain-kind and --domains-file: give one of them")
    if domains is not None:
        raise UsageError(
            f"--domains {domains}: {'--domains-file' if file else '--domain-kind'} says how many; leave it out"
        )
    kinds = _read_file(file) if file is not None else [_of_flag(flag) for flag in flags or ()]
    names = [kind.name for kind in kinds]
    if twice := [name for name in names if names.count(name) > 1]:
        advice = "give each kind a name of its own" if file else "add the numbers, or name kinds in --domains-file"
        raise UsageError(f"{_place(file) if file else '--domain-kind'}: {twice[0]} is given twice; {advice}")
    if (total := sum(kind.domains for kind in kinds)) > MOST_DOMAINS:
        place = _place(file) if file else "--domain-kind"
        raise UsageError(f"{place}: {total} domains are too many; at most {MOST_DOMAINS} are accepted")
    return kinds


def make_groups(
    kinds: Sequence[KindOptions],
    source: ModelSource,
    dtype: DType,
    *,
    random_weights: bool,
    kv_cache_bytes: int | None,
    host_kv_memory: str | None,
    block_size: int,
) -> list[DomainGroup]:
    """The kinds as an engine has them; the model is profiled in each precision on its first use on this machine.

    A kind of fewer bytes a weight than `dtype` loses precision.
    """
    groups = []
    for kind in kinds:
        path = ensure_profile(source, kind.dtype, random_weights=random_weights, console=err)
        lost = BYTES_PER_ELEMENT[resolve_dtype(kind.dtype)] < BYTES_PER_ELEMENT[resolve_dtype(dtype)]
        groups.append(
            DomainGroup(
                kind_id=kind.name,
                domains=kind.domains,
                dtype=kind.dtype,
                profile_path=str(path),
                loses_precision=lost,
                kv_cache_bytes=kind.kv_cache_bytes or kv_cache_bytes,
                host_blocks=host_blocks(kind.host_kv_memory or host_kv_memory, load_profile(path), block_size),
                max_running=kind.max_running,
                max_step_tokens=kind.max_step_tokens,
            )
        )
    return groups


def predicted_kinds(groups: Sequence[DomainGroup]) -> list[DomainKind]:
    """The kinds as a scheduler has them, by their profiles alone."""
    return [
        DomainKind(
            group.kind_id,
            (profile := load_profile(Path(group.profile_path))).latency_model,
            max_running=group.max_running,
            max_step_tokens=group.max_step_tokens,
            host_blocks=group.host_blocks,
            device_type=profile.device.name,
            precision=resolve_dtype(group.dtype),
            loses_precision=group.loses_precision,
            kv_layout=profile.dtype,
        )
        for group in groups
    ]


def kind_of_each_domain(groups: Sequence[DomainGroup]) -> list[str]:
    """The kind of each domain of an engine, by the number that the engine gives it."""
    return [group.kind_id for group in groups for _ in range(group.domains)]


def fastest_model(kinds: Sequence[DomainKind]) -> Callable[[SLOContract], LatencyModel]:
    """Of a contract the latency model of the fastest kind that it permits; where it permits none, of all."""

    def of(contract: SLOContract) -> LatencyModel:
        permitted = [kind for kind in kinds if kind.permits(contract)] or kinds
        return min((kind.latency_model for kind in permitted), key=speed_rank)

    return of


def _of_flag(flag: str) -> KindOptions:
    match = re.fullmatch(r"([a-z0-9]+)(?:=([1-9][0-9]{0,5}))?", flag)
    if match is None or match[1] not in DTYPES:
        raise UsageError(
            f"--domain-kind {flag!r}: write PRECISION=DOMAINS, like int8=1; precisions: {', '.join(DTYPES)}"
        )
    return KindOptions(match[1], cast(DType, match[1]), int(match[2] or 1))


def _read_file(file: Path) -> list[KindOptions]:
    place = _place(file)
    try:
        data = read_settings(file.read_text("utf-8"), place)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{place}: cannot be read ({error})") from None
    if isinstance(data, dict) and list(data) == [SECTION]:
        data = data[SECTION]
    if not isinstance(data, dict) or not data:
        raise UsageError(f"{place}: a mapping of names to kinds is needed, as in quick: {{dtype: int8, domains: 1}}")
    return [_of_entry(_name(name, place), entry, f"{place}: {name}") for name, entry in data.items()]


def _place(file: Path) -> str:
    return f"domains file {file}"


def _name(key: object, place: str) -> str:
    """A kind's name as people see it in a terminal and in /health: one line that is not empty."""
    if not isinstance(key, str | int) or isinstance(key, bool) or not NAME.fullmatch(str(key)):
        raise UsageError(f"{place}: {shown(key)} is no name of a kind; use up to 64 letters, digits, '.', '_' and '-'")
    return str(key)


def _of_entry(name: str, entry: Any, place: str) -> KindOptions:
    if not isinstance(entry, dict):
        raise UsageError(f"{place}: {entry!r} is not accepted; expected a mapping with dtype and domains")
    if unknown := [key for key in entry if key not in ACCEPTED]:
        raise UsageError(f"{place}: unknown key {unknown[0]!r}; accepted: {', '.join(ACCEPTED)}")
    if entry.get("dtype") not in DTYPES:
        raise UsageError(f"{place}: dtype {entry.get('dtype')!r} is unknown; accepted: {', '.join(DTYPES)}")
    for key in COUNTS:
        value = entry.get(key, 1)
        if type(value) is not int or not 1 <= value <= MOST:
            raise UsageError(f"{place}: {key} {value!r} is not accepted; expected a whole number from 1 to {MOST}")
    for key in SIZES:
        if key in entry:
            parse_bytes(str(entry[key]), f"{place}: {key}")
    memory = entry.get("kv_cache_memory")
    return KindOptions(
        name,
        entry["dtype"],
        entry.get("domains", 1),
        kv_cache_bytes=None if memory is None else parse_bytes(str(memory), f"{place}: kv_cache_memory"),
        host_kv_memory=None if "host_kv_memory" not in entry else str(entry["host_kv_memory"]),
        max_running=entry.get("max_running"),
        max_step_tokens=entry.get("max_step_tokens"),
    )
