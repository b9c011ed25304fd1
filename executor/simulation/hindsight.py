"""How well a run's requests and steps were predicted, told afterwards from its scheduler's journal.

    python -m superinfer.executor.simulation.hindsight JOURNAL [--most 300]

The calls are gone through again. Whenever a request had come, a copy of the scheduler is run ahead until that request
has ended, with those that then came: what its time to first token and per output token were expected to be, queueing
included, is a question to the latency model, the scheduler's decisions and the clock together, and not to chance
arrivals. Prints one JSON object. A copy is a fork of this process, which therefore has to be one of its own.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Literal

import msgspec

from superinfer.contracts.errors import UsageError
from superinfer.executor.journal import Added, Begun, Observed, Planned, begin, read_journal, repeat
from superinfer.executor.pipeline import STEP_GAP_S, USUAL_LEAD_S
from superinfer.executor.simulation.forecast import Arrival, EnginePace, Forecast, forecast
from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.domain import InFlightStep

MOST_REQUESTS = 300
"""Requests that are asked about where a run has more, evenly spread over it; each takes some ten milliseconds."""

ENGINE_PACE = EnginePace(gap_s=STEP_GAP_S, lead_s=USUAL_LEAD_S)

StepKind = Literal["decode", "prefill", "mixed"]


class PredictedRequest(msgspec.Struct, frozen=True):
    """What was to be expected of a request when it came, in seconds; None where it was not expected to end."""

    request_id: str
    ttft_s: float | None
    tpot_s: float | None


class PredictedStep(msgspec.Struct, frozen=True):
    """A step's predicted and real seconds; and whether it stayed below what nine in ten are expected to."""

    kind: StepKind
    predicted_s: float
    took_s: float
    is_below_upper: bool


class Predictions(msgspec.Struct):
    """Of one run. `ended_by` says what a journal does not keep where it could not be gone through to its end."""

    requests: list[PredictedRequest] = []
    steps: list[PredictedStep] = []
    ended_by: str | None = None


class JournalWalk:
    """A journal, gone through: `scheduler` is as it was at each moment, `coming` are the requests still to come,
    `began_s` says when the first step in flight of each domain began. Subclasses say what is asked on the way.
    """

    def __init__(self, path: Path) -> None:
        entries = read_journal(path)
        first = next(entries, None)
        if not isinstance(first, Begun):
            raise UsageError(f"{path}: is no journal of a scheduler: it does not begin with what that was made of")
        self._entries = list(entries)
        self.scheduler = begin(first)
        self.coming: deque[Arrival] = deque(
            (each.now, each.request) for each in self._entries if isinstance(each, Added)
        )
        self.began_s: dict[str, float] = {}

    def run(self) -> None:
        """Make every call. Raises UsageError at one that a journal does not keep."""
        for entry in self._entries:
            if isinstance(entry, Observed):
                self._look_at(entry)
            elif isinstance(entry, Planned) and not self.scheduler.domains[entry.domain_id].in_flight:
                self.began_s[entry.domain_id] = entry.now
            repeat(self.scheduler, entry)
            if isinstance(entry, Added):
                self.coming.popleft()
                self.on_added(entry)

    def _look_at(self, entry: Observed) -> None:
        result = entry.result
        step = self.scheduler.domains[result.domain_id].in_flight.get(result.step_id)
        if step is not None and step.shape.tokens and not step.pacing.is_slow_on_purpose:
            self.scheduler.speeds.speak_for(result.domain_id)
            self.on_step(entry, step, self.scheduler.speeds.model_of(result.domain_id))
        self.began_s[result.domain_id] = result.finished_s

    def on_added(self, entry: Added) -> None:
        """A request has just come."""

    def on_step(self, entry: Observed, step: InFlightStep, model: LatencyModel) -> None:
        """A step is over, and nothing learnt of it yet: the model predicts it as it did."""


class _Asking(JournalWalk):
    def __init__(self, path: Path, most: int, pace: EnginePace) -> None:
        super().__init__(path)
        self._pace = pace
        ids = [request.request_id for _, request in self.coming]
        self._chosen: Collection[str] = {ids[number * len(ids) // most] for number in range(most)} if ids else set()
        self.found = Predictions()

    def on_added(self, entry: Added) -> None:
        request = entry.request
        open_ids = (each.request.request_id for each in self.scheduler.open_sequences)
        if request.request_id not in self._chosen or request.request_id not in open_ids:
            return
        times = in_a_fork(
            lambda: forecast(
                self.scheduler,
                entry.now,
                [request.request_id],
                started_s=self.began_s,
                arrivals=iter(self.coming),
                pace=self._pace,
            )[request.request_id]
        )
        ttft_s, tpot_s = times.first_token_s - request.arrival_s, None
        if request.sampling.max_tokens > 1:
            tpot_s = (times.last_token_s - times.first_token_s) / (request.sampling.max_tokens - 1)
        is_known = not math.isnan(times.last_token_s)
        self.found.requests.append(
            PredictedRequest(request.request_id, ttft_s if is_known else None, tpot_s if is_known else None)
        )

    def on_step(self, entry: Observed, step: InFlightStep, model: LatencyModel) -> None:
        shape, took_s = step.shape, entry.result.duration_s
        kind: StepKind = "decode" if not shape.chunks else "mixed" if shape.decodes else "prefill"
        predicted_s = model.step_s(shape)
        self.found.steps.append(PredictedStep(kind, predicted_s, took_s, took_s <= model.upper_ratio * predicted_s))


def in_a_fork(ask: Callable[[], Forecast]) -> Forecast:
    """The answer to a question that uses up what it is asked of. Not for a process that has other threads at work."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            times = ask()
            os.write(writer, msgspec.msgpack.encode((times.first_token_s, times.last_token_s)))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return Forecast(*msgspec.msgpack.decode(answer, type=tuple[float, float]))


def predictions(path: Path, most: int = MOST_REQUESTS, pace: EnginePace = ENGINE_PACE) -> Predictions:
    """Those of the journal at `path`, of an engine of this pace; UsageError where it is none."""
    walk = _Asking(path, most, pace)
    try:
        walk.run()
    except UsageError as error:
        walk.found.ended_by = str(error)
    return walk.found


def main() -> int:
    """Print the predictions of the journal that the arguments name."""
    parser = argparse.ArgumentParser(description="How well a run's requests and steps were predicted, as JSON.")
    parser.add_argument("journal", type=Path)
    parser.add_argument("--most", type=int, default=MOST_REQUESTS, help="requests that are asked about")
    options = parser.parse_args()
    try:
        found = predictions(options.journal, options.most)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
