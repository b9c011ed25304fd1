from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest

from superinfer.cli.bench.faults import Strike, completed, describe_strike, strike, verify_tokens, worker_pid
from superinfer.cli.bench.load_generator import LoadResult, Record
from superinfer.cli.bench.scenario import Fault
from superinfer.cli.bench.workload import PlannedRequest
from superinfer.executor.messages import DomainEvent, DomainInfo, Finished, Tokens
from superinfer.scheduler.outputs import StageTimes
from superinfer.scheduler.request import SamplingParams

DOMAINS = [DomainInfo("0", 100, 10, 16), DomainInfo("1", 101, 10, 16)]
KILL = Fault(kind="kill", domain=0, at=0.4)


def record(number, *, sent_s, finish_s, domains=("0",), token_times=(), migration_s=0.0, tokens=(5, 6)):
    sampling = SamplingParams(max_tokens=len(tokens), temperature=0.0, ignore_eos=True)
    made = Record(PlannedRequest(f"r{number}", "triage", 0.0, [1, 2], sampling), sent_s, sent_s)
    made.token_ids = list(tokens)
    made.token_times_s = list(token_times)
    made.finish_s = finish_s
    stages = StageTimes(migration_s=migration_s)
    made.last = Finished(f"r{number}", "length", finish_s, stages, len(tokens), list(domains))
    return made


def test_the_pid_to_kill_is_that_of_the_process_that_is_the_domain_now():
    down = DomainEvent("0", "down", 1.0, 100, 2)
    up = DomainEvent("0", "up", 2.0, 200)
    assert worker_pid("0", DOMAINS, []) == 100
    assert worker_pid("0", DOMAINS, [down]) is None
    assert worker_pid("0", DOMAINS, [down, up]) == 200
    assert worker_pid("1", DOMAINS, [down, up]) == 101


def test_a_strike_kills_at_its_share_of_the_sending_time():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        strikes: list[Strike] = []
        start_s = time.monotonic()
        domains = [DomainInfo("0", process.pid, 10, 16)]
        asyncio.run(strike([KILL], start_s=start_s, sending_s=0.5, domains=domains, events=[], strikes=strikes))
        assert process.wait(5) == -9
    (hit,) = strikes
    assert hit.time_s - start_s == pytest.approx(0.2, abs=0.1)
    assert hit.worker_pid == process.pid


def test_a_domain_that_is_down_already_is_left_alone():
    strikes: list[Strike] = []
    down = [DomainEvent("0", "down", 1.0, 100)]
    asyncio.run(strike([KILL], start_s=0.0, sending_s=0.0, domains=DOMAINS, events=down, strikes=strikes))
    assert strikes == []


def test_a_strike_is_described_by_its_own_domains_events_and_the_requests_of_the_moment():
    load = LoadResult(
        start_s=100.0,
        records=[
            record(0, sent_s=101.0, finish_s=103.0, token_times=[102.0, 102.9]),
            record(1, sent_s=104.0, finish_s=108.0, token_times=[104.5, 107.5], domains=("0", "1")),
            record(2, sent_s=106.0, finish_s=107.0, token_times=[106.1, 106.9]),
        ],
    )
    hit = Strike(KILL, "0", 100, 105.0)
    events = [
        DomainEvent("0", "up", 101.0, 100),
        DomainEvent("1", "down", 105.5, 101, 9),
        DomainEvent("0", "down", 105.01, 100, 1),
        DomainEvent("0", "up", 107.0, 200),
    ]
    told = describe_strike(hit, load, events)
    assert told["time_s"] == pytest.approx(5.0)
    assert told["detected_after_ms"] == pytest.approx(10)
    assert told["time_until_up_s"] == pytest.approx(2.0)
    assert told["moved_requests"] == 1
    assert told["alive_requests"] == 1
    assert told["longest_gap_ms"] == pytest.approx(3000)
    assert told["e2e_p99_ms_alive"] == pytest.approx(4000)
    assert (told["lost"], told["duplicated"]) == (0, 0)


def test_lost_requests_and_doubled_tokens_are_counted():
    lost = record(0, sent_s=1.0, finish_s=2.0)
    lost.last.reason = "error"
    doubled = record(1, sent_s=1.0, finish_s=2.0)
    doubled.duplicated = 3
    told = describe_strike(Strike(KILL, "0", 100, 1.5), LoadResult(0.0, [lost, doubled]), [])
    assert told["lost"] == 2
    assert told["duplicated"] == 3
    assert told["time_until_up_s"] is None


def test_every_completed_request_is_verified_and_no_other():
    done = [record(0, sent_s=1.0, finish_s=2.0), record(1, sent_s=3.5, finish_s=5.0, domains=("0", "1"))]
    failed = record(2, sent_s=2.0, finish_s=4.0)
    failed.last.reason = "error"
    assert completed(LoadResult(0.0, [*done, failed])) == done


class Reference:
    """An engine that always answers 5, 6."""

    down = None

    async def submit(self, request):
        async def stream():
            yield Tokens(request.request_id, 0, [5, 6], 0.0)
            yield Finished(request.request_id, "length", 0.0, StageTimes(), 2)

        return stream()


def test_other_tokens_than_an_undisturbed_run_gives_are_found_and_named():
    records = [record(i, sent_s=1.0, finish_s=2.0) for i in range(6)]
    records[4].token_ids = [5, 7]

    async def verify():
        return await verify_tokens(Reference(), records, asyncio.Event())

    told = asyncio.run(verify())
    assert told == {"tokens_compared": 6, "tokens_verified": 5, "tokens_differ": ["r4"]}
