"""How an engine and its workers are started."""

from __future__ import annotations

from typing import Literal

import msgspec

from superinfer.contracts.contract import SLOContract
from superinfer.scheduler.config import SchedulerConfig

DType = Literal["auto", "float32", "bfloat16", "int8"]


class WorkerConfig(msgspec.Struct, kw_only=True):
    """One worker process. `cores` are the CPU numbers it is pinned to; empty leaves it unpinned.

    `dtype` "auto" is bfloat16 where the CPU multiplies it in hardware (AVX512-BF16, AMX), float32 elsewhere; "int8" is
    of the weights, beside float32 activations and cache.
    `kv_cache_bytes` None takes a share of the free memory, which `workers` workers divide among them. `kv_pools` are
    file descriptors of all domains' pools (`superinfer.executor.kv_pools`), of which those of `segment` are this
    worker's; without them its cache ends with it, and unless `device_outlives` its device pool does.
    """

    domain_id: str
    model_dir: str
    dtype: DType = "auto"
    random_weights: bool = False
    kv_cache_bytes: int | None = None
    workers: int = 1
    host_blocks: int = 0
    block_size: int = 16
    max_model_len: int = 2048
    max_step_tokens: int = 256
    threads: int = 1
    cores: list[int] = []
    kv_pools: list[int] = []
    segment: int = 0
    device_outlives: bool = True


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """How what a worker has computed outlives it; where it does not (`enabled` False) a dead worker's requests are
    recomputed.

    "in_place" keeps the KV cache itself in memory that outlives the worker: every token is saved as it is computed,
    at no cost, and a survivor reads it where it lies. "copy" is the way of an accelerator, whose memory ends with its
    worker: every `save_interval_ms` the blocks that changed ("incremental"), or all of them ("full"), are copied to
    the host pool, and a survivor copies them to its own.
    """

    enabled: bool = True
    placement: Literal["in_place", "copy"] = "in_place"
    strategy: Literal["incremental", "full"] = "incremental"
    save_interval_ms: float = 50.0


class DomainGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Domains of one kind: `domains` workers that hold the model in the same precision, `dtype`.

    `profile_path` names the feature JSON of the model in it. One that `loses_precision` serves only contracts that
    permit this. Limits that are None are those of the whole engine; `kv_cache_bytes` None takes a share of the free
    memory.
    """

    kind_id: str
    domains: int
    dtype: DType
    profile_path: str
    loses_precision: bool = False
    kv_cache_bytes: int | None = None
    host_blocks: int | None = None
    max_running: int | None = None
    max_step_tokens: int | None = None


class EngineConfig(msgspec.Struct, kw_only=True):
    """The engine process: how many domains, which policy, which contracts; one worker process per domain.

    With `groups` domains are of several kinds: the first of them are those of the first group, and so on, `domains` is
    their number, and `dtype`, `profile_path` and `kv_cache_bytes` are those of each group. `profile_path` names the
    model's feature JSON, whose latency model the scheduler uses. A worker is held to hang, and is killed, in a step
    that takes `step_timeout_s` and twenty times as long as predicted. `fork_workers` False makes every worker's process
    from scratch, imports included. With a `journal_path` the scheduler's calls are written down there
    (`superinfer.executor.journal`).
    """

    model_dir: str
    profile_path: str
    domains: int = 1
    dtype: DType = "auto"
    random_weights: bool = False
    kv_cache_bytes: int | None = None
    restart_workers: bool = True
    fork_workers: bool = True
    step_timeout_s: float = 30.0
    checkpoint: Checkpoint = Checkpoint()
    scheduler: SchedulerConfig = msgspec.field(default_factory=SchedulerConfig)
    contracts: list[SLOContract] = []
    journal_path: str | None = None
    groups: list[DomainGroup] = []

    def __post_init__(self) -> None:
        """ValueError where the groups have another number of domains."""
        if self.groups and sum(group.domains for group in self.groups) != self.domains:
            raise ValueError(
                f"the groups have {sum(group.domains for group in self.groups)} domains, not {self.domains}"
            )

    @property
    def group_of_domain(self) -> list[DomainGroup]:
        """The group of each domain, by its number; where all are equal one that has what the engine has."""
        whole = DomainGroup(
            kind_id="",
            domains=self.domains,
            dtype=self.dtype,
            profile_path=self.profile_path,
            kv_cache_bytes=self.kv_cache_bytes,
        )
        return [group for group in self.groups or [whole] for _ in range(group.domains)]


def worker_config(config: EngineConfig, domain: int, cores: list[int], kv_pools: list[int]) -> WorkerConfig:
    """What the worker of one domain of an engine is told."""
    group = config.group_of_domain[domain]
    return WorkerConfig(
        domain_id=str(domain),
        model_dir=config.model_dir,
        dtype=group.dtype,
        random_weights=config.random_weights,
        kv_cache_bytes=group.kv_cache_bytes,
        workers=config.domains,
        host_blocks=config.scheduler.host_blocks if group.host_blocks is None else group.host_blocks,
        block_size=config.scheduler.block_size,
        max_model_len=config.scheduler.max_model_len,
        max_step_tokens=group.max_step_tokens or config.scheduler.max_step_tokens,
        cores=cores,
        kv_pools=kv_pools,
        segment=domain,
        device_outlives=config.checkpoint.placement == "in_place",
    )


def worker_kinds(config: EngineConfig, kv_pools: list[int]) -> list[WorkerConfig]:
    """One worker of each precision that there is: what its kernels depend on."""
    first_of = {group.dtype: number for number, group in reversed(list(enumerate(config.group_of_domain)))}
    return [worker_config(config, number, [], kv_pools) for number in sorted(first_of.values())]
