"""Running a scheduler ahead says what then happens, from a journal that was gone through up to any moment."""

from __future__ import annotations

import heapq
from pathlib import Path

import msgspec
import pytest
from small_model import MODEL

from superinfer.cli.bench.calibration import predictions_of
from superinfer.contracts.contract import Bound, SLOContract
from superinfer.contracts.errors import UsageError
from superinfer.executor.journal import Added, Begun, Changed, Entry, JournaledScheduler, begin, read_journal, repeat
from superinfer.executor.simulated import SimulatedDevice
from superinfer.executor.simulation.forecast import AT_ONCE, EnginePace, Forecast, expected_arrivals, forecast
from superinfer.executor.simulation.hindsight import predictions
from superinfer.executor.simulation.loop import simulate
from superinfer.scheduler.config import DomainSpec, SchedulerConfig
from superinfer.scheduler.outputs import FinishOutput
from superinfer.scheduler.request import Request, SamplingParams
from superinfer.scheduler.scheduler import Scheduler

CONTRACTS = [
    SLOContract(service_id="tight", latency=(Bound(0.99, 2500.0),)),
    SLOContract(service_id="loose", latency=(Bound(0.99, 30_000.0),)),
]
DOMAINS = [DomainSpec("0", 200), DomainSpec("1", 200)]


def requests() -> list[Request]:
    return [
        Request(
            request_id=f"r{number}",
            contract_id="loose" if number % 3 else "tight",
            prompt_token_ids=[0] * (40 + 90 * (number % 3)),
            sampling=SamplingParams(max_tokens=5 + 7 * (number % 4), ignore_eos=True),
            arrival_s=0.21 * number,
        )
        for number in range(24)
    ]


def serve(path: Path, policy: str) -> dict[str, Forecast]:
    """What becomes of the requests on two devices that take as long as predicted; the calls go to `path`."""
    config = SchedulerConfig(policy=policy)
    scheduler = JournaledScheduler(
        path, domains=DOMAINS, contracts=CONTRACTS, latency_model=MODEL.fresh(), config=config
    )
    devices = {spec.domain_id: SimulatedDevice(spec.domain_id, MODEL) for spec in DOMAINS}
    events = [(request.arrival_s, number, request) for number, request in enumerate(requests())]
    ends: list = []
    found = {}
    busy: set[str] = set()
    count = 0
    while events or ends:
        if events and (not ends or events[0][0] <= ends[0][0]):
            now, _, request = heapq.heappop(events)
            assert scheduler.add(request, now) is None
        else:
            now, _, result = heapq.heappop(ends)
            busy.remove(result.domain_id)
            for output in scheduler.observe(result, now):
                if isinstance(output, FinishOutput):
                    found[output.request_id] = Forecast(output.first_token_s, output.last_token_s)
        for domain_id, device in devices.items():
            if domain_id not in busy and scheduler.has_work(domain_id):
                plan = scheduler.plan(domain_id, now)
                if plan is not None:
                    device.now = now
                    result = device.execute(plan)
                    count += 1
                    busy.add(domain_id)
                    heapq.heappush(ends, (result.finished_s, count, result))
    scheduler.close()
    return found


def state_after(path: Path, calls: int) -> tuple[Scheduler, list[Entry], float]:
    """The scheduler after so many calls, the calls that followed, and the time of the last one made."""
    first, *entries = read_journal(path)
    assert isinstance(first, Begun)
    scheduler = begin(first)
    for entry in entries[:calls]:
        repeat(scheduler, entry)
    return scheduler, entries[calls:], entries[calls - 1].now  # type: ignore[union-attr]


@pytest.mark.parametrize("policy", ["slack", "fcfs"])
@pytest.mark.parametrize("calls", [1, 30, 77, 130])
def test_run_ahead_with_the_arrivals_that_come_it_says_what_happens(tmp_path: Path, policy: str, calls: int) -> None:
    real = serve(tmp_path / "journal", policy)
    assert len(real) == 24
    scheduler, later, now = state_after(tmp_path / "journal", calls)
    began_s = {
        domain.domain_id: now - _elapsed_s(tmp_path / "journal", domain.domain_id, calls, now)
        for domain in scheduler.domains.values()
    }
    open_ids = [sequence.request.request_id for sequence in scheduler.open_sequences]
    coming = [(entry.now, entry.request) for entry in later if isinstance(entry, Added)]
    wanted = [*open_ids, *(request.request_id for _, request in coming)]
    found = forecast(scheduler, now, wanted, started_s=began_s, arrivals=iter(coming))
    assert found.keys() == set(wanted)
    for request_id, times in found.items():
        assert times.first_token_s == pytest.approx(real[request_id].first_token_s)
        assert times.last_token_s == pytest.approx(real[request_id].last_token_s)


@pytest.mark.parametrize("policy", ["slack", "fcfs"])
def test_with_a_lead_a_step_is_planned_before_the_last_one_ends_as_simulation_does(policy: str) -> None:
    config = SchedulerConfig(policy=policy)
    fates = simulate(
        requests(), contracts=CONTRACTS, model=MODEL.fresh(), config=config, domains=DOMAINS[:1], lead_s=0.06
    ).requests
    for lead_s, is_equal in ((0.06, True), (0.0, False)):
        scheduler = Scheduler(
            domains=DOMAINS[:1], contracts=CONTRACTS, latency_model=MODEL.fresh(), config=SchedulerConfig(policy=policy)
        )
        coming = [(request.arrival_s, request) for request in requests()]
        wanted = [request.request_id for _, request in coming]
        found = forecast(scheduler, 0.0, wanted, arrivals=iter(coming), pace=EnginePace(lead_s=lead_s))
        expected = [(each.first_token_s, each.finished_s) for each in fates]
        times = [(found[each.request_id].first_token_s, found[each.request_id].last_token_s) for each in fates]
        assert (times == [pytest.approx(each) for each in expected]) is is_equal


def _elapsed_s(path: Path, domain_id: str, calls: int, now: float) -> float:
    """How long the step in flight has been running."""
    times = [e.now for e in list(read_journal(path))[1 : calls + 1] if getattr(e, "domain_id", None) == domain_id]
    return now - times[-1] if times else 0.0


def test_in_hindsight_every_request_was_predicted_where_steps_take_what_is_said_of_them(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    real = serve(path, "slack")
    by_command = predictions_of(path)
    assert by_command is not None
    found = predictions(path, pace=AT_ONCE)
    assert len(by_command.requests) == len(found.requests)
    assert found.ended_by is None
    assert {each.request_id for each in found.requests} == real.keys()
    tokens = {request.request_id: request.sampling.max_tokens for request in requests()}
    arrivals = {request.request_id: request.arrival_s for request in requests()}
    for each in found.requests:
        times = real[each.request_id]
        assert each.ttft_s == pytest.approx(times.first_token_s - arrivals[each.request_id])
        gaps = tokens[each.request_id] - 1
        assert each.tpot_s == pytest.approx((times.last_token_s - times.first_token_s) / gaps)
    assert {step.kind for step in found.steps} == {"decode", "prefill", "mixed"}
    assert all(step.predicted_s == pytest.approx(step.took_s) for step in found.steps)


def test_hindsight_asks_of_no_more_requests_than_it_is_told_and_ends_where_the_journal_does(tmp_path: Path) -> None:
    serve(tmp_path / "whole", "fcfs")
    lines = (tmp_path / "whole").read_bytes().splitlines(keepends=True)
    (tmp_path / "short").write_bytes(b"".join(lines[:40]) + msgspec.json.encode(Changed("domain 0 died")) + b"\n")
    found = predictions(tmp_path / "short", most=3)
    assert 1 <= len(found.requests) <= 3
    assert found.ended_by is not None
    assert "domain 0 died" in found.ended_by


def test_what_is_no_journal_has_no_predictions(tmp_path: Path) -> None:
    for name, content in (("text", "hello"), ("empty", "")):
        (tmp_path / name).write_text(content)
        with pytest.raises(UsageError, match=f"{name}: is no journal of a scheduler"):
            predictions(tmp_path / name)
    assert predictions_of(tmp_path / "text") is None


def test_without_the_rest_of_the_load_nothing_ends_later(tmp_path: Path) -> None:
    serve(tmp_path / "journal", "fcfs")
    for calls in (20, 60):
        alone, later, now = state_after(tmp_path / "journal", calls)
        loaded, _, _ = state_after(tmp_path / "journal", calls)
        wanted = [sequence.request.request_id for sequence in alone.open_sequences]
        coming = ((entry.now, entry.request) for entry in later if isinstance(entry, Added))
        free = forecast(alone, now, wanted)
        busy = forecast(loaded, now, wanted, arrivals=coming)
        assert all(free[each].last_token_s <= busy[each].last_token_s + 1e-9 for each in wanted)


def test_expected_arrivals_come_at_the_rate_and_size_of_late(tmp_path: Path) -> None:
    serve(tmp_path / "journal", "fcfs")
    scheduler, _, now = state_after(tmp_path / "journal", 100)
    loads = {load.contract_id: load for load in scheduler.admission.arriving(now)}
    stream = expected_arrivals(scheduler, now, seed=3)
    drawn = [next(stream) for _ in range(400)]
    seconds = drawn[-1][0] - now
    assert drawn == sorted(drawn, key=lambda each: each[0])
    for contract_id, load in loads.items():
        mine = [request for _, request in drawn if request.contract_id == contract_id]
        assert len(mine) / seconds == pytest.approx(load.per_s, rel=0.25)
        assert len(mine[0].prompt_token_ids) == pytest.approx(load.prompt_tokens, abs=0.5)
        assert mine[0].sampling.max_tokens == pytest.approx(load.output_tokens, abs=0.5)


def test_a_journal_that_was_cut_or_tells_of_a_change_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_text('{"type": "Planned", "now": 1.0')
    with pytest.raises(UsageError, match="is no journal of a scheduler"):
        list(read_journal(path))
    with pytest.raises(UsageError, match="cannot be read"):
        list(read_journal(tmp_path / "none"))
    scheduler = JournaledScheduler(
        path, domains=DOMAINS, contracts=CONTRACTS, latency_model=MODEL.fresh(), config=SchedulerConfig()
    )
    scheduler.domain_failed("1", 1.0)
    scheduler.close()
    first, change = read_journal(path)
    assert isinstance(first, Begun)
    with pytest.raises(UsageError, match="domain 1 died"):
        repeat(begin(first), change)


def test_whoever_knows_what_steps_take_may_say_so(tmp_path: Path) -> None:
    serve(tmp_path / "journal", "fcfs")
    twice, _, now = state_after(tmp_path / "journal", 1)
    wanted = [sequence.request.request_id for sequence in twice.open_sequences]
    model = MODEL.fresh()
    found = forecast(twice, now, wanted, step_s=lambda domain_id, shape, begin_s: 2 * model.uncorrected_step_s(shape))
    usual, _, _ = state_after(tmp_path / "journal", 1)
    expected = forecast(usual, now, wanted)
    for request_id in wanted:
        assert found[request_id].last_token_s - now == pytest.approx(2 * (expected[request_id].last_token_s - now))
