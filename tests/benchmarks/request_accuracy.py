"""How well whole requests are predicted when they come, and steps when they are planned, in real runs.

    superinfer bench mixed --journal --policy slack --out RUN
    python tests/benchmarks/request_accuracy.py RUN [RUN ...] [--draws 3] [--json FILE]

The scheduler's calls are gone through again. Whenever a request had come, a copy of the scheduler (a fork of this
process) is run ahead until the request has ended, queueing included. With the requests that then came, it says how
good the picture of the engine is: latency model, scheduler, clock. As if nobody else came, and with as many others as
have been coming of late (the mean of `--draws` draws), it is what could have been said of the request at that moment.
Printed is |predicted − real| / real of its time to first token and per output token as the client saw them, by
contract: the mean, the median, the 90 % quantile, and the mean prediction over the mean of what was real; beside it the
same of the sums that admission weighs (`AdmissionControl.estimate`). For steps: the error of predictions as made, the
common level of measured over predicted by the profile alone, and the gaps between steps that follow each other.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from superinfer.executor.journal import Added, Begun, Observed, Planned, begin, read_journal, repeat
from superinfer.executor.simulation.forecast import expected_arrivals, forecast
from superinfer.scheduler.request import Request
from superinfer.scheduler.scheduler import Scheduler

Times = tuple[float, float]
"""Time to first token and time per output token, seconds."""

WAYS = ("those that came", "nobody else comes", "others as of late", "admission's sums")


@dataclass(slots=True)
class Steps:
    """What a run's steps show."""

    served: list[float] = field(default_factory=list)
    levels: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    covered: list[bool] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)


class Replay:
    """One journal, gone through; `predicted` is by request and way, `steps` what its steps show."""

    def __init__(self, path: Path, draws: int, request_ids: Collection[str]) -> None:
        self.predicted: dict[str, dict[str, Times]] = {}
        self.steps = Steps()
        self._draws = draws
        self._began_s: dict[str, float] = {}
        first, *entries = read_journal(path)
        self._coming = [entry.request for entry in entries if isinstance(entry, Added)]
        assert isinstance(first, Begun), f"{path}: does not begin with what the scheduler was made of"
        self.scheduler = begin(first)
        for number, entry in enumerate(entries):
            if isinstance(entry, Observed):
                self._note(entry)
            in_flight = len(self.scheduler.domains[entry.domain_id].in_flight) if isinstance(entry, Planned) else 0
            repeat(self.scheduler, entry)
            if isinstance(entry, Planned) and not in_flight:
                self._began_s[entry.domain_id] = entry.now
            if isinstance(entry, Added):
                del self._coming[0]
            if isinstance(entry, Added) and entry.request.request_id in request_ids:
                self._ask(entry, number)

    def _note(self, entry: Observed) -> None:
        result, scheduler = entry.result, self.scheduler
        step = scheduler.domains[result.domain_id].in_flight.get(result.step_id)
        if step is not None and step.shape.tokens:
            scheduler.speeds.speak_for(result.domain_id)
            model, duration_s = scheduler.model, result.duration_s
            self.steps.served.append(model.step_s(step.shape) / duration_s)
            self.steps.levels.append(duration_s / model.uncorrected_step_s(step.shape))
            self.steps.covered.append(duration_s <= model.upper_ratio * model.step_s(step.shape))
            began_s = self._began_s[result.domain_id]
            self.steps.gaps_s.append(result.started_s - began_s)
            shape = {name: getattr(step.shape, name) for name in step.shape.__slots__}
            self.steps.rows.append({**shape, "seconds": duration_s, "at_s": result.started_s, "now": entry.now})
        self._began_s[result.domain_id] = result.finished_s

    def _ask(self, entry: Added, number: int) -> None:
        request, scheduler = entry.request, self.scheduler
        outputs = request.sampling.max_tokens
        found: dict[str, Times] = {}
        seeds = range(number, number + self._draws)
        arrivals: dict[str, list[Iterator[Request]]] = {
            WAYS[0]: [iter(self._coming)],
            WAYS[1]: [iter(())],
            WAYS[2]: [expected_arrivals(scheduler, entry.now, seed) for seed in seeds],
        }
        for way, streams in arrivals.items():
            draws = [_in_a_fork(scheduler, entry.now, request.request_id, self._began_s, stream) for stream in streams]
            first_s, last_s = fmean(first for first, _ in draws), fmean(last for _, last in draws)
            found[way] = first_s - request.arrival_s, (last_s - first_s) / max(outputs - 1, 1)
        sequence = next(each for each in scheduler.open_sequences if each.request.request_id == request.request_id)
        scheduler.speeds.speak_for_all()
        estimate = scheduler.admission.estimate(sequence, entry.now)
        found[WAYS[3]] = entry.now + estimate.first_token_s - request.arrival_s, estimate.token_s
        self.predicted[request.request_id] = found


def _in_a_fork(
    scheduler: Scheduler, now: float, request_id: str, began_s: dict[str, float], arrivals: Iterator[Request]
) -> Times:
    """Run a copy of the scheduler ahead: the request's first and last token."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            times = forecast(scheduler, now, [request_id], started_s=began_s, arrivals=arrivals)[request_id]
            os.write(writer, json.dumps([times.first_token_s, times.last_token_s]).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    first_s, last_s = json.loads(text)
    return first_s, last_s


def rows(name: str, replay: Replay, real: dict[str, dict[str, Any]]) -> Iterator[list[str]]:
    """One line of cells a contract and way."""
    for service_id in sorted({each["service_id"] for each in real.values()}):
        for way in WAYS:
            cells = [name, service_id, way]
            for index, key in enumerate(("ttft_ms", "tpot_ms")):
                pairs = [
                    (1e3 * replay.predicted[request_id][way][index], request[key])
                    for request_id, request in real.items()
                    if request["service_id"] == service_id and request[key] and request_id in replay.predicted
                ]
                predicted, was = np.array([pair for pair in pairs if not math.isnan(pair[0])]).T
                errors = np.abs(predicted / was - 1.0)
                cells.append(
                    f"{errors.mean():.1%}, {np.median(errors):.1%}, {np.quantile(errors, 0.9):.1%} "
                    f"({predicted.mean() / was.mean() - 1.0:+.1%} of {was.mean():,.0f} ms)"
                )
            yield cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write every prediction and step here")
    options = parser.parse_args()
    everything: dict[str, Any] = {}
    print("| run | contract | predicted as if | TTFT: mean, median, p90 error (bias) | TPOT |")
    print("| --- | --- | --- | --- | --- |")
    lines = []
    for folder in options.folders:
        requests = list(map(json.loads, (folder / "per_request.jsonl").read_text().splitlines()))
        for path in sorted(folder.glob("journal-*.jsonl")):
            policy = path.stem.removeprefix("journal-")
            name = f"{folder.name} {policy}"
            real = {each["request_id"]: each for each in requests if each["policy"] == policy}
            replay = Replay(path, options.draws, real)
            for cells in rows(name, replay, real):
                print("| " + " | ".join(cells) + " |")
            sys.stdout.flush()
            lines.append(step_line(name, replay.steps))
            everything[name] = {"steps": replay.steps.rows, "requests": replay.predicted, "real": real}
    print("\n| run | steps | error of predictions as served: median, p90 | below p90 | measured / profile | gap |")
    print("| --- | --- | --- | --- | --- | --- |")
    print("\n".join(lines))
    if options.json:
        options.json.write_text(json.dumps(everything))


def step_line(name: str, steps: Steps) -> str:
    """The line of a run's steps."""
    errors = np.abs(np.array(steps.served) - 1.0)
    gaps_ms = 1e3 * np.array(steps.gaps_s)
    return (
        f"| {name} | {len(errors)} | {np.median(errors):.1%}, {np.quantile(errors, 0.9):.1%} "
        f"| {np.mean(steps.covered):.1%} | {np.median(steps.levels):.3f} "
        f"| {np.median(gaps_ms):.1f} ms median, {gaps_ms.mean():.1f} mean |"
    )


if __name__ == "__main__":
    main()
