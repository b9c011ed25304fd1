"""The death of a domain and its return: who moves, with how much of their KV, and what a new worker begins with."""

from __future__ import annotations

from dataclasses import dataclass

from superinfer.scheduler.blocks import BlockPool, Kept, KVMemory, device_pool, host_pool
from superinfer.scheduler.config import DomainSpec
from superinfer.scheduler.domain import DomainState
from superinfer.scheduler.sequence import SequenceState
from superinfer.scheduler.suspects import Suspects

MAX_DOMAIN_DEATHS = 3


@dataclass(frozen=True, slots=True)
class Displaced:
    """A sequence of a dead domain, without blocks: `kept` is what outlived it; `is_poison` says that it is held to kill
    its workers.
    """

    sequence: SequenceState
    kept: Kept | None
    is_poison: bool


def vacate(domain: DomainState, suspects: Suspects, block_size: int, *, isolates: bool) -> list[Displaced]:
    """Take everybody out of a dead domain, in order of entry, and void its steps in flight.

    Each in a step in flight is suspected until it has another token. Where the death may have been a request's doing,
    the suspected ones run one at a time on each domain (`isolates`), so that a second death tells which one it is.
    """
    members = [*domain.running.values(), *domain.rotated.values()]
    in_step, computed = domain.in_step(), domain.surely_computed()
    outliving = computed if domain.device_outlives else domain.surely_saved()
    for step in domain.in_flight.values():
        domain.memory.give_back(step.lent)
    domain.running.clear()
    domain.rotated.clear()
    domain.in_flight.clear()
    domain.finished = []
    suspected = [sequence for sequence in members if sequence.sequence_id in in_step]
    for sequence in suspected:
        suspects.add(sequence, computed.get(sequence.sequence_id, 0), isolates=isolates)
    is_told_apart = sum(sequence.domain_deaths > 1 for sequence in suspected) == 1
    most_deaths = 2 if is_told_apart else MAX_DOMAIN_DEATHS
    displaced = []
    for sequence in members:
        kept = _kept(domain, sequence, outliving.get(sequence.sequence_id, 0), block_size)
        sequence.blocks, sequence.host_blocks = [], []
        displaced.append(Displaced(sequence, kept, sequence.domain_deaths >= most_deaths))
    return displaced


def state_of_ready(
    spec: DomainSpec, shared: KVMemory, host_blocks: int, previous: DomainState | None, precision: str = ""
) -> DomainState:
    """A domain that is up, or up again: with an empty cache unless its memory has outlived it. `shared` is that of all
    domains whose KV it can read.
    """
    memory = KVMemory() if spec.segment is None else shared
    if not spec.device_outlives:
        memory.forget(device_pool(spec.segment or 0))
    device = memory.pool(device_pool(spec.segment or 0), spec.kv_blocks)
    host = BlockPool(host_blocks) if spec.segment is None else memory.pool(host_pool(spec.segment), host_blocks)
    state = DomainState(spec.domain_id, memory, device, host, spec.segment, spec.device_outlives, precision.encode())
    if previous is not None:
        # Step ids never repeat, so that a late result of the dead worker cannot pass for one of its successor.
        state.next_step_id = previous.next_step_id
    return state


def _kept(domain: DomainState, sequence: SequenceState, tokens: int, block_size: int) -> Kept | None:
    """Give a dead domain's blocks back, those with the KV of the first `tokens` tokens so that it is kept."""
    if domain.segment is None:
        return None
    blocks, other = sequence.blocks, sequence.host_blocks
    if not blocks or not domain.device_outlives:
        blocks, other = other, blocks
    used = -(-tokens // block_size)
    domain.memory.give_back([*blocks[used:], *other])
    return domain.memory.keep(blocks[:used], tokens, sequence.sequence_id) if tokens else None
