"""Settings of the scheduler and of a domain; every one has a default that works."""

from __future__ import annotations

from typing import Literal

import msgspec

from superinfer.scheduler.fault_map import FaultMap


class SchedulerConfig(msgspec.Struct, kw_only=True):
    """What the scheduler may do, whatever its policy.

    `max_step_tokens` is the token budget of one step, `max_running` the sequences with KV in the device pool,
    `host_blocks` the KV blocks that rotated sequences may hold in host memory, per domain. `fault_domains` says which
    domains serve which contract; without it every domain serves all.

    `admission` "refuse" turns away, or degrades to its alternative service, a request that load would make late;
    "accept" takes all. `max_waiting` bounds how many requests of a best-effort contract wait. Error budgets are kept
    over the last `budget_window_s`. Every `save_interval_s` the blocks that changed, or with "full" all of them, are
    copied to the host pool while it has room; None leaves that out. With `prefix_cache` prompts that begin alike share
    the KV of what they have in common.

    `placement` is for domains of several kinds under a policy that goes by slack: "headroom" keeps requests from
    domains that cannot hold their contract; "pull" lets every domain take what its kind may serve.
    """

    policy: str = "slack"
    max_step_tokens: int = 256
    max_running: int = 64
    max_model_len: int = 2048
    block_size: int = 16
    host_blocks: int = 0
    decay_profile_path: str | None = None
    fault_domains: FaultMap = {}
    admission: Literal["accept", "refuse"] = "accept"
    max_waiting: int | None = None
    budget_window_s: float = 3600.0
    prefix_cache: bool = False
    save_interval_s: float | None = None
    placement: Literal["headroom", "pull"] = "headroom"
    save_strategy: Literal["incremental", "full"] = "incremental"


class DomainSpec(msgspec.Struct, frozen=True):
    """One fault domain as the scheduler sees it.

    `bandwidth_gb_per_s` is the memory bandwidth of its device, best the measured one, `kv_bytes_per_token` what a token
    in its cache takes, `weight_bytes` what every step reads whatever it holds; without the first, 0, no bandwidth can
    be reserved there. Domains with the same `device_id` share that bandwidth; "" is a device of its own.

    A domain with a `segment`, a number of its own, has its KV cache in memory that outlives it and that every other
    such domain can read: its sequences go on elsewhere with what was computed. Where only the host pool outlives it,
    as with an accelerator's own memory, `device_outlives` is False: they go on with what had been saved there.

    `kind` names the DomainKind of a scheduler whose domains are unequal.
    """

    domain_id: str
    kv_blocks: int
    bandwidth_gb_per_s: float = 0.0
    kv_bytes_per_token: float = 0.0
    segment: int | None = None
    weight_bytes: float = 0.0
    device_id: str = ""
    device_outlives: bool = True
    kind: str = ""
