"""Policies by name. To add one: implement `superinfer.scheduler.policies.base.Policy` and list its maker here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from superinfer.contracts.errors import UsageError
from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.config import SchedulerConfig
from superinfer.scheduler.decay import DecayProfile, load_decay_profile
from superinfer.scheduler.policies.base import Policy
from superinfer.scheduler.policies.planner_config import PlannerConfig, planner_from_mapping
from superinfer.scheduler.policies.rivals import (
    EarliestDeadlineFirst,
    FirstComeFirstServed,
    RoundRobin,
    ShortestJobFirst,
    StaticPriority,
)
from superinfer.scheduler.policies.rotary import AgeRotation, VirtualLagRotation
from superinfer.scheduler.policies.slack import SlackPolicy


def _slack(model: LatencyModel, config: SchedulerConfig) -> Policy:
    decay, planner = DecayProfile(), PlannerConfig()
    if config.decay_profile_path:
        path = Path(config.decay_profile_path)
        decay, section = load_decay_profile(path)
        planner = planner_from_mapping(section, str(path))
    return SlackPolicy(model, decay=decay, planner=planner)


POLICIES: dict[str, Callable[[LatencyModel, SchedulerConfig], Policy]] = {
    "slack": _slack,
    "fcfs": lambda model, config: FirstComeFirstServed(),
    "round_robin": lambda model, config: RoundRobin(),
    "priority": lambda model, config: StaticPriority(),
    "sjf": lambda model, config: ShortestJobFirst(model),
    "edf": lambda model, config: EarliestDeadlineFirst(),
    "vlt": lambda model, config: VirtualLagRotation(model),
    "age_rotation": lambda model, config: AgeRotation(),
}


def check_policy(name: str) -> str:
    """The name itself, or a UsageError that lists the accepted ones."""
    if name not in POLICIES:
        raise UsageError(f"policy {name!r} is unknown; accepted: {', '.join(POLICIES)}")
    return name


def make_policy(model: LatencyModel, config: SchedulerConfig) -> Policy:
    """The policy that `config.policy` names."""
    return POLICIES[check_policy(config.policy)](model, config)
