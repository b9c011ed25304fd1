"""Settings of the scheduler and of a domain; every one has a default that works."""

from __future__ import annotations

import msgspec

from superinfer.scheduler.fault_map import FaultMap


class SchedulerConfig(msgspec.Struct, kw_only=True):
    """What the scheduler may do, whatever its policy.

    `max_step_tokens` is the token budget of one step, `max_running` the sequences with KV in the device pool,
    `host_blocks` the KV blocks that rotated sequences may hold in host memory, per domain. `fault_domains` says which
    domains serve which contract; without it every domain serves all.
    """

    policy: str = "slack"
    max_step_tokens: int = 256
    max_running: int = 64
    max_model_len: int = 2048
    block_size: int = 16
    host_blocks: int = 0
    decay_profile_path: str | None = None
    fault_domains: FaultMap = {}


class DomainSpec(msgspec.Struct, frozen=True):
    """One fault domain as the scheduler sees it."""

    domain_id: str
    kv_blocks: int
