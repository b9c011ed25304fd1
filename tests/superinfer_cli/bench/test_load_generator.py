from __future__ import annotations

import asyncio

import pytest

from superinfer.cli.bench.load_generator import LoadGenerator, Record
from superinfer.cli.bench.workload import PlannedRequest
from superinfer.contracts.errors import EngineError
from superinfer.executor.messages import Finished, Rejected, Tokens
from superinfer.scheduler.outputs import StageTimes
from superinfer.scheduler.request import SamplingParams


def planned(number, offset_s=0.0, tokens=4):
    sampling = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    return PlannedRequest(f"r{number}", "triage", offset_s, [1, 2, 3], sampling)


def finished(request_id, tokens=4, reason="length", **more):
    return Finished(request_id, reason, 0.0, StageTimes(queue_s=0.2), tokens, ["0"], **more)


class FakeEngine:
    """Answers like an engine after a delay; with `concurrency` it takes only so many requests at a time."""

    def __init__(self, delay_s=0.02, concurrency=1000, answer=None):
        self.delay_s = delay_s
        self.slots = asyncio.Semaphore(concurrency)
        self.answer = answer or self.all_tokens
        self.received = []
        self.left_early = []
        self.down = None

    async def submit(self, request):
        self.received.append(request)
        return self.stream(request)

    async def stream(self, request):
        done = False
        try:
            async with self.slots:
                await asyncio.sleep(self.delay_s)
                for message in self.answer(request):
                    done = not isinstance(message, Tokens)
                    yield message
        finally:
            if not done:
                self.left_early.append(request.request_id)

    @staticmethod
    def all_tokens(request):
        yield Tokens(request.request_id, 0, [7], 0.0)
        yield Tokens(request.request_id, 1, [8, 9, 10], 0.0)
        yield finished(request.request_id)


def run(engine_of, workload, *, stop_after_s=None, **options):
    async def go():
        engine = engine_of()
        stop = asyncio.Event()
        if stop_after_s is not None:
            asyncio.get_running_loop().call_later(stop_after_s, stop.set)
        return engine, await LoadGenerator(engine, workload, stop=stop, **options).run()

    return asyncio.run(go())


def test_a_stalled_server_does_not_delay_sends_and_latency_counts_from_the_schedule():
    workload = [planned(i, 0.02 * i) for i in range(10)]
    engine, result = run(lambda: FakeEngine(delay_s=0.1, concurrency=1), workload)
    for i, record in enumerate(result.records):
        assert record.scheduled_s == result.start_s + 0.02 * i
        assert 0 <= record.sent_s - record.scheduled_s < 0.05
    assert [r.arrival_s for r in engine.received] == [r.scheduled_s for r in result.records]
    last = result.records[-1].measurement(result.start_s)
    # One at a time, 0.1 s each: the tenth waits for nine others although it was sent at 0.18 s.
    assert last.e2e_ms == pytest.approx(1000 - 180, abs=150)
    assert last.scheduled_s == pytest.approx(0.18)


def test_a_sender_that_comes_late_is_charged_to_the_request():
    late = Record(planned(0), scheduled_s=10.0, sent_s=10.7)
    late.take(Tokens("r0", 0, [1, 2, 3, 4], 0.0), 11.0)
    late.last, late.finish_s = finished("r0"), 11.0
    assert late.measurement(5.0).e2e_ms == pytest.approx(1000)
    assert late.measurement(5.0).sent_s == pytest.approx(5.7)


def test_tokens_times_stages_and_domains_are_recorded():
    _, result = run(FakeEngine, [planned(0)])
    record = result.records[0]
    assert record.end == "completed"
    assert record.token_ids == [7, 8, 9, 10]
    measurement = record.measurement(result.start_s)
    assert measurement.output_tokens == 4
    assert measurement.stages_ms["queue"] == pytest.approx(200)
    assert measurement.domains == ["0"]
    assert measurement.first_token_s <= measurement.finish_s


@pytest.mark.parametrize(
    ("answer", "end", "duplicated", "skipped"),
    [
        (lambda r: [Rejected(r.request_id, "too_long", "no")], "rejected", 0, 0),
        (lambda r: [finished(r.request_id, 0, "error", error="died")], "failed", 0, 0),
        (lambda r: [finished(r.request_id, 0, "abort")], "cancelled", 0, 0),
        (lambda r: [Tokens(r.request_id, 0, [1, 2, 3], 0), finished(r.request_id)], "failed", 0, 0),
        (
            lambda r: [Tokens(r.request_id, 0, [1, 2, 3], 0), Tokens(r.request_id, 2, [3, 4], 0), finished("")],
            "failed",
            1,
            0,
        ),
        (
            lambda r: [Tokens(r.request_id, 0, [1], 0), Tokens(r.request_id, 2, [3, 4, 5], 0), finished("")],
            "failed",
            0,
            1,
        ),
    ],
)
def test_an_end_is_completed_only_with_every_token_once(answer, end, duplicated, skipped):
    _, result = run(lambda: FakeEngine(answer=answer), [planned(0)])
    record = result.records[0]
    assert (record.end, record.duplicated, record.skipped) == (end, duplicated, skipped)
    if end in ("rejected", "failed"):
        assert record.measurement(result.start_s).error


def test_an_engine_that_fell_silent_is_the_runs_error_and_nothing_more_is_sent():
    def silent():
        engine = FakeEngine(answer=lambda r: [finished(r.request_id, 0, "error", error="it has said nothing")])
        engine.down = EngineError("it has said nothing for 30 s")
        return engine

    engine, result = run(silent, [planned(0), planned(1, 0.3)])
    assert result.engine_error == "it has said nothing for 30 s"
    assert [r.request_id for r in engine.received] == ["r0"]


def test_stopping_sends_nothing_more_and_cancels_what_is_open():
    workload = [planned(i, 0.05 * i) for i in range(100)]
    engine, result = run(lambda: FakeEngine(delay_s=10), workload, stop_after_s=0.3)
    assert result.interrupted
    assert 1 <= len(result.records) < 10
    assert all(record.end == "cancelled" for record in result.records)
    assert sorted(engine.left_early) == [record.planned.request_id for record in result.records]


def test_a_request_whose_sending_had_not_begun_when_the_run_stopped_is_cancelled_too():
    async def go():
        stop = asyncio.Event()
        workload = [planned(0)]
        generator = LoadGenerator(FakeEngine(), workload, stop=stop, on_sent=lambda record: stop.set())
        return await generator.run()

    result = asyncio.run(go())
    assert [record.end for record in result.records] == ["cancelled"]


def test_an_engine_that_falls_silent_ends_the_run_with_the_reason():
    _, result = run(lambda: FakeEngine(delay_s=100), [planned(0)], silence_s=0.2)
    assert "nothing" in result.engine_error
    assert not result.interrupted
    assert result.records[0].end == "cancelled"


def test_a_dead_engine_ends_the_sending():
    workload = [planned(i, 0.05 * i) for i in range(100)]
    alive = iter([True, True, True])
    _, result = run(FakeEngine, workload, engine_alive=lambda: next(alive, False))
    assert len(result.records) == 3
    assert "ended" in result.engine_error


def test_an_engine_error_while_submitting_fails_the_request_and_is_reported():
    class Broken:
        async def submit(self, request):
            raise EngineError("the engine process ended unexpectedly")

    _, result = run(Broken, [planned(0)])
    assert result.records[0].end == "failed"
    assert result.engine_error == "the engine process ended unexpectedly"


def test_the_duration_is_that_of_the_last_end():
    _, result = run(lambda: FakeEngine(delay_s=0.05), [planned(0), planned(1, 0.1)])
    assert result.duration_s == pytest.approx(0.15, abs=0.05)
