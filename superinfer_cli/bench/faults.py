"""Injected faults: a worker is killed under load, and what that did to the requests of the moment is measured."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from superinfer.cli.bench.load_generator import Client, LoadGenerator, LoadResult, Record
from superinfer.cli.bench.scenario import Fault
from superinfer.executor.messages import DomainEvent, DomainInfo
from superinfer.results.attainment import distribution

VERIFY_CONCURRENCY = 8
"""Requests of the quiet pass that run at a time."""


@dataclass(slots=True)
class Strike:
    """A fault that was injected: the moment on the monotonic clock and the process that was killed."""

    fault: Fault
    domain_id: str
    worker_pid: int
    time_s: float


def worker_pid(domain_id: str, domains: Sequence[DomainInfo], events: Sequence[DomainEvent]) -> int | None:
    """The process that is the domain now, None while it is down."""
    pid = next((info.worker_pid for info in domains if info.domain_id == domain_id), None)
    for event in events:
        if event.domain_id == domain_id:
            pid = event.worker_pid if event.state == "up" else None
    return pid


async def strike(
    faults: Sequence[Fault],
    *,
    start_s: float,
    sending_s: float,
    domains: Sequence[DomainInfo],
    events: Sequence[DomainEvent],
    strikes: list[Strike],
) -> None:
    """Inject each fault at its time, appending to `strikes`; a fault whose domain is down already is left out.

    `start_s` is the run's time zero on the monotonic clock, `sending_s` the time over which requests are sent,
    `events` the client's growing list.
    """
    timed = [(fault.at_s if fault.at_s is not None else (fault.at or 0.0) * sending_s, fault) for fault in faults]
    for offset_s, fault in sorted(timed, key=lambda pair: pair[0]):
        await asyncio.sleep(max(0.0, start_s + offset_s - time.monotonic()))
        domain_id = domains[fault.domain].domain_id
        pid = worker_pid(domain_id, domains, events)
        if pid is None:
            continue
        now_s = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        strikes.append(Strike(fault, domain_id, pid, now_s))


def describe_strike(hit: Strike, load: LoadResult, events: Sequence[DomainEvent]) -> dict[str, Any]:
    """What one fault did: detection and recovery times, requests moved, and what their clients saw.

    `longest_gap_ms` is the longest silence between tokens of a request that was alive at the fault, `lost` the
    admitted requests of the run that did not complete, `duplicated` tokens that a client got twice. Times that
    never came (a domain that stayed down) are None.
    """
    own = [e for e in events if e.domain_id == hit.domain_id and e.time_s >= hit.time_s]
    down = next((event for event in own if event.state == "down"), None)
    up = next((event for event in own if event.state == "up"), None)
    alive = [record for record in load.records if record.alive_at(hit.time_s)]
    latencies = distribution((r.finish_s - r.scheduled_s) * 1e3 for r in alive if r.finish_s and r.end == "completed")
    return {
        "kind": hit.fault.kind,
        "domain_id": hit.domain_id,
        "worker_pid": hit.worker_pid,
        "time_s": hit.time_s - load.start_s,
        "detected_after_ms": None if down is None else (down.time_s - hit.time_s) * 1e3,
        "time_until_up_s": None if up is None else up.time_s - hit.time_s,
        "moved_requests": 0 if down is None else down.moved_requests,
        "alive_requests": len(alive),
        "longest_gap_ms": max((record.longest_gap_s for record in alive), default=0.0) * 1e3,
        "e2e_p99_ms_alive": latencies.p99,
        "lost": sum(r.end in ("failed", "cancelled") for r in load.records),
        "duplicated": sum(record.duplicated for record in load.records),
    }


def completed(load: LoadResult) -> list[Record]:
    """The requests of a run that completed."""
    return [record for record in load.records if record.end == "completed"]


async def verify_tokens(client: Client, records: Sequence[Record], stop: asyncio.Event) -> dict[str, Any]:
    """Run the requests again on the quiet engine and compare their greedy tokens with what they got under fault.

    `tokens_verified` counts requests with equal tokens, of `tokens_compared`; `tokens_differ` names the others.
    """
    differ: list[str] = []
    compared = 0
    for first in range(0, len(records), VERIFY_CONCURRENCY):
        batch = records[first : first + VERIFY_CONCURRENCY]
        again = [
            replace(record.planned, request_id=f"verify-{record.planned.request_id}", offset_s=0.0) for record in batch
        ]
        quiet = await LoadGenerator(client, again, stop=stop).run()
        for record, reference in zip(batch, quiet.records, strict=False):
            if reference.end != "completed":
                continue
            compared += 1
            if reference.token_ids != record.token_ids:
                differ.append(record.planned.request_id)
    return {"tokens_compared": compared, "tokens_verified": compared - len(differ), "tokens_differ": differ}
