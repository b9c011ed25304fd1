"""Constrained placement: which device group, precision, KV layout and batch cap a request gets.

Every combination is tried. One is feasible when the contract permits its precision, the group is large enough, its
memory and device time are free, and the predicted headroom is positive: the smallest of (bound − predicted time) over
the contract's milestones, predicted at the upper quantile of the latency model and with the whole batch beside it.
Of the feasible ones the best fit is taken, the least headroom that still holds, so that big gaps stay for tight
requests. With equal headroom, the one that takes less device time, then less memory, then the first by name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from superinfer.contracts.contract import SLOContract
from superinfer.profiler.latency_model import LatencyModel

KVLayout = Literal["paged", "contiguous"]


@dataclass(frozen=True, slots=True)
class Precision:
    """A way to run the model: its latency model at relative compute 1 and the KV bytes of a token."""

    name: str
    latency: LatencyModel
    kv_bytes_per_token: float
    loses_precision: bool = False


@dataclass(frozen=True, slots=True)
class DomainGroup:
    """Fault domains that serve a request together, and what nobody has reserved of them.

    `free_time` is the share of device time (0 to 1), `speed` the relative compute of the whole group,
    `precisions` the names of those that it has loaded.
    """

    group_id: str
    devices: int
    speed: float
    free_time: float
    free_memory_bytes: float
    precisions: frozenset[str]
    device_type: str = ""


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """What is to be placed: its contract, its lengths (`output_tokens` the upper estimate), how long it has waited."""

    request_id: str
    contract: SLOContract
    prompt_tokens: int
    output_tokens: int
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PlacementOptions:
    """What may be chosen. `paged_overhead` is the factor that following a block table costs on decode time."""

    precisions: tuple[Precision, ...]
    kv_layouts: tuple[KVLayout, ...] = ("paged", "contiguous")
    batch_caps: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    block_size: int = 16
    max_model_len: int = 2048
    paged_overhead: float = 1.0


@dataclass(frozen=True, slots=True)
class Placement:
    """One way to run a request.

    `headroom_s` is what remains of its tightest milestone, infinite for best effort; `time_share` and
    `memory_bytes` are what it reserves of the group while it runs.
    """

    request_id: str
    group_id: str
    precision: str
    kv_layout: KVLayout
    batch_cap: int
    predicted_s: float
    headroom_s: float
    time_share: float
    memory_bytes: float


def feasible_placements(
    request: PlacementRequest, groups: Sequence[DomainGroup], options: PlacementOptions
) -> list[Placement]:
    """Every combination under which the request is predicted to hold its contract, in order of enumeration."""
    contract = request.contract
    found = []
    for group in groups:
        if group.devices < contract.resources.min_gpu_count:
            continue
        for precision in options.precisions:
            if precision.name not in group.precisions:
                continue
            if precision.loses_precision and not contract.precision_loss_allowed:
                continue
            for layout in options.kv_layouts:
                memory = _memory_bytes(request, precision, layout, options)
                if memory > group.free_memory_bytes:
                    continue
                for cap in options.batch_caps:
                    placement = _placement(request, group, precision, layout, cap, memory, options)
                    if placement.headroom_s > 0.0 and placement.time_share <= group.free_time:
                        found.append(placement)
    return found


def best_fit(placements: Sequence[Placement]) -> Placement | None:
    """The least headroom that still holds; None where there is nothing to choose from."""
    return min(placements, key=_fit_order, default=None)


def place(request: PlacementRequest, groups: Sequence[DomainGroup], options: PlacementOptions) -> Placement | None:
    """Where a request goes, on its contract's preferred type of device if it fits there; None if it fits nowhere."""
    feasible = feasible_placements(request, groups, options)
    preferred_type = request.contract.resources.preferred_gpu_type
    preferred_ids = {group.group_id for group in groups if group.device_type == preferred_type}
    return best_fit([each for each in feasible if each.group_id in preferred_ids] or feasible)


def place_all(
    requests: Sequence[PlacementRequest], groups: Sequence[DomainGroup], options: PlacementOptions
) -> dict[str, Placement | None]:
    """Place several at once, those with the fewest feasible placements first; each takes its share of its group."""
    free = {group.group_id: group for group in groups}
    choices = {each.request_id: len(feasible_placements(each, groups, options)) for each in requests}
    placed: dict[str, Placement | None] = {}
    for request in sorted(requests, key=lambda each: (choices[each.request_id], each.request_id)):
        chosen = place(request, list(free.values()), options)
        placed[request.request_id] = chosen
        if chosen is not None:
            free[chosen.group_id] = reserve(free[chosen.group_id], chosen)
    return placed


def reserve(group: DomainGroup, placement: Placement) -> DomainGroup:
    """The group with the placement's time and memory no longer free."""
    return replace(
        group,
        free_time=group.free_time - placement.time_share,
        free_memory_bytes=group.free_memory_bytes - placement.memory_bytes,
    )


def _fit_order(placement: Placement) -> tuple[float, float, float, str, str, str, int]:
    return (
        placement.headroom_s,
        placement.time_share,
        placement.memory_bytes,
        placement.group_id,
        placement.precision,
        placement.kv_layout,
        placement.batch_cap,
    )


def _memory_bytes(
    request: PlacementRequest, precision: Precision, layout: KVLayout, options: PlacementOptions
) -> float:
    """KV memory at the end of the request: whole blocks if paged, else room for the longest sequence there may be."""
    if layout == "contiguous":
        tokens = options.max_model_len
    else:
        tokens = math.ceil((request.prompt_tokens + request.output_tokens) / options.block_size) * options.block_size
    return tokens * precision.kv_bytes_per_token


def _placement(
    request: PlacementRequest,
    group: DomainGroup,
    precision: Precision,
    layout: KVLayout,
    cap: int,
    memory_bytes: float,
    options: PlacementOptions,
) -> Placement:
    model, outputs = precision.latency, request.output_tokens
    context = request.prompt_tokens + outputs // 2
    upper = model.upper_ratio / group.speed
    overhead = options.paged_overhead if layout == "paged" else 1.0
    first_s = upper * model.prefill_s(0, request.prompt_tokens)
    token_s = upper * overhead * cap * model.shared_decode_s(cap, context)
    total_s = first_s + (outputs - 1) * token_s
    # Its own part of the steps that it shares; what it must get within the time that it will be here.
    work_s = first_s + (outputs - 1) * token_s / cap
    headroom_s = _headroom_s(request, first_s, token_s, total_s)
    here_s = total_s if math.isinf(headroom_s) else total_s + max(headroom_s, 0.0)
    return Placement(
        request_id=request.request_id,
        group_id=group.group_id,
        precision=precision.name,
        kv_layout=layout,
        batch_cap=cap,
        predicted_s=total_s,
        headroom_s=headroom_s,
        time_share=work_s / here_s,
        memory_bytes=memory_bytes,
    )


def _headroom_s(request: PlacementRequest, first_s: float, token_s: float, total_s: float) -> float:
    """The smallest of what is left of each milestone; a bound per token counts over the whole decode."""
    contract, outputs = request.contract, request.output_tokens
    left = [math.inf]
    if contract.deadline_ms is not None:
        left.append(contract.deadline_ms / 1e3 - request.waited_s - total_s)
    if contract.ttft_deadline_ms is not None:
        left.append(contract.ttft_deadline_ms / 1e3 - request.waited_s - first_s)
    if contract.tpot_deadline_ms is not None and outputs > 1:
        left.append((outputs - 1) * (contract.tpot_deadline_ms / 1e3 - token_s))
    return min(left)
