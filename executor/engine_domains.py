"""What an engine says of its domains: to the scheduler of which kinds they are, and to clients how each of them is."""

from __future__ import annotations

from pathlib import Path

import msgspec

from superinfer.executor.config import DomainGroup, EngineConfig
from superinfer.executor.device_watch import DeviceWatch, stored_weight_bytes
from superinfer.executor.messages import ContractStats, DomainInfo, DomainStats, Stats
from superinfer.executor.supervised_worker import SupervisedWorker
from superinfer.profiler.latency_model import LatencyModel
from superinfer.profiler.store import ModelProfile, load_profile
from superinfer.scheduler.config import DomainSpec
from superinfer.scheduler.domain_kind import DomainKind
from superinfer.scheduler.scheduler import Scheduler


class EngineDomains:
    """The domains of one engine. Raises ModelError where a profile cannot be read."""

    def __init__(self, config: EngineConfig, workers: list[SupervisedWorker], devices: DeviceWatch) -> None:
        self._config = config
        self._workers = workers
        self._devices = devices
        groups = config.group_of_domain
        self._group_of = {worker.domain_id: group for worker, group in zip(workers, groups, strict=True)}
        self._profiles: dict[str, ModelProfile] = {
            group.profile_path: load_profile(Path(group.profile_path)) for group in groups
        }

    @property
    def latency_model(self) -> LatencyModel:
        """That of the first domain."""
        return self._profile(self._config.group_of_domain[0]).latency_model

    def kinds(self) -> list[DomainKind]:
        """The kinds where domains are of several; empty where all are equal."""
        return [self._kind(group) for group in self._config.groups]

    def specs(self) -> list[DomainSpec]:
        """Every domain; all workers are up."""
        return [self.spec(worker) for worker in self._workers]

    def spec(self, worker: SupervisedWorker) -> DomainSpec:
        """What the scheduler knows of a domain: its blocks, its device's bandwidth, what weights and a token take."""
        group = self._group_of[worker.domain_id]
        profile = self._profile(group)
        device_id, measured = self._devices.bandwidth_of(worker.config.cores)
        return DomainSpec(
            worker.domain_id,
            worker.kv_blocks,
            bandwidth_gb_per_s=measured or profile.device.memory_read_gb_per_s or 0.0,
            kv_bytes_per_token=float(profile.static.memory.kv_bytes_per_token),
            segment=worker.config.segment if worker.config.kv_pools else None,
            weight_bytes=stored_weight_bytes(
                Path(self._config.model_dir), profile.architecture.parameters, group.dtype
            ),
            device_id=device_id,
            device_outlives=self._config.checkpoint.placement == "in_place",
            kind=group.kind_id,
        )

    def infos(self) -> list[DomainInfo]:
        """What clients are told of each domain when the engine is ready."""
        block_size = self._config.scheduler.block_size
        return [
            DomainInfo(worker.domain_id, worker.pid, worker.kv_blocks, block_size, *self._names(worker.domain_id))
            for worker in self._workers
        ]

    def stats(self, scheduler: Scheduler, now: float) -> Stats:
        """A snapshot of the engine."""
        stats = scheduler.stats(now)
        fields = msgspec.structs.asdict(stats)
        fields["contracts"] = [
            ContractStats(service_id=service_id, **msgspec.structs.asdict(counts))
            for service_id, counts in stats.contracts.items()
        ]
        fields["domains"] = [
            DomainStats(
                domain_id,
                *self._names(domain_id),
                is_up=domain.is_up,
                running=len(domain.running),
                rotated=len(domain.rotated),
                kv_blocks_total=domain.device_blocks.total,
                kv_blocks_free=domain.device_blocks.free,
            )
            for domain_id, domain in scheduler.domains.items()
        ]
        return Stats(**fields)

    def _kind(self, group: DomainGroup) -> DomainKind:
        profile = self._profile(group)
        own = [worker for worker in self._workers if self._group_of[worker.domain_id] is group]
        return DomainKind(
            group.kind_id,
            profile.latency_model,
            max_running=group.max_running,
            max_step_tokens=group.max_step_tokens,
            host_blocks=group.host_blocks,
            device_type=profile.device.name,
            memory_per_device_mb=min(self._memory_bytes(worker) for worker in own) / 1e6,
            precision=self._precision(group),
            loses_precision=group.loses_precision,
            # int8 is of the weights alone: its keys and values lie as those of float32, and either reads the other's.
            kv_layout=profile.dtype,
        )

    def _memory_bytes(self, worker: SupervisedWorker) -> float:
        """The memory of a worker's device, of which those that share it count an equal part each."""
        device = self._devices.device_of(worker.config.cores)
        sharing = sum(self._devices.device_of(each.config.cores) == device for each in self._workers)
        return device.memory_bytes / sharing

    def _names(self, domain_id: str) -> tuple[str, str]:
        """What people call a domain's kind, and its precision."""
        group = self._group_of[domain_id]
        precision = self._precision(group)
        return group.kind_id or precision, precision

    def _precision(self, group: DomainGroup) -> str:
        return self._profile(group).dtype if group.dtype == "auto" else group.dtype

    def _profile(self, group: DomainGroup) -> ModelProfile:
        return self._profiles[group.profile_path]
