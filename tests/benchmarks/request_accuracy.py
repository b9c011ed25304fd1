"""How well whole requests are predicted when they come, and steps when they are planned, in real runs.

    superinfer bench mixed --journal --policy slack --out RUN
    python tests/benchmarks/request_accuracy.py RUN [RUN ...] [--draws 3] [--json FILE]

`bench --journal` itself says how well requests were predicted with those that then came; here is more. The scheduler's
calls are gone through again. Whenever a request had come, a copy of the scheduler (a fork of this
process) is run ahead until the request has ended, queueing included. With the requests that then came, it says how
good the picture of the engine is: latency model, scheduler, clock. As if nobody else came, and with as many others as
have been coming of late (the mean of `--draws` draws), it is what could have been said of the request at that moment.
With the speeds known that the device then had, what is left is neither its noise nor chance arrivals.
Printed is |predicted − real| / real of its time to first token and per output token as the client saw them, by
contract: the mean, the median, the 90 % quantile, and the mean prediction over the mean of what was real; beside it the
same of the sums that admission weighs (`AdmissionControl.estimate`). For steps: the error of predictions as made, the
common level of measured over predicted by the profile alone, and the gaps between steps that follow each other.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from real_steps import RealSteps

from superinfer.executor.journal import Added, Observed
from superinfer.executor.simulation.forecast import Arrival, Forecast, expected_arrivals, forecast
from superinfer.executor.simulation.hindsight import ENGINE_PACE, JournalWalk, in_a_fork
from superinfer.profiler.latency_model import LatencyModel, StepShape
from superinfer.scheduler.domain import InFlightStep

Times = tuple[float, float]
"""Time to first token and time per output token, seconds."""

WAYS = (
    "those that came",
    "nobody else comes",
    "others as of late",
    "admission's sums",
    "those that came, speeds known",
)


@dataclass(slots=True)
class Steps:
    """What a run's steps show."""

    served: list[float] = field(default_factory=list)
    levels: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    covered: list[bool] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)


class Replay(JournalWalk):
    """One journal, gone through; `predicted` is by request and way, `steps` what its steps show."""

    def __init__(self, path: Path, draws: int, request_ids: Collection[str]) -> None:
        super().__init__(path)
        self.predicted: dict[str, dict[str, Times]] = {}
        self.steps = Steps()
        self._draws = draws
        self._real = RealSteps(path)
        self._request_ids = request_ids
        self.run()

    def on_step(self, entry: Observed, step: InFlightStep, model: LatencyModel) -> None:
        """As JournalWalk.on_step."""
        result, shape = entry.result, step.shape
        duration_s = result.duration_s
        self.steps.served.append(model.step_s(shape) / duration_s)
        self.steps.levels.append(duration_s / model.uncorrected_step_s(shape))
        self.steps.covered.append(duration_s <= model.upper_ratio * model.step_s(shape))
        self.steps.gaps_s.append(result.started_s - self.began_s[result.domain_id])
        row = {name: getattr(shape, name) for name in shape.__slots__}
        self.steps.rows.append({**row, "seconds": duration_s, "at_s": result.started_s, "now": entry.now})

    def on_added(self, entry: Added) -> None:
        """As JournalWalk.on_added."""
        request, scheduler = entry.request, self.scheduler
        if request.request_id not in self._request_ids:
            return
        gaps = max(request.sampling.max_tokens - 1, 1)
        found: dict[str, Times] = {}
        seeds = range(len(self.predicted), len(self.predicted) + self._draws)
        arrivals: dict[str, list[Iterator[Arrival]]] = {
            WAYS[0]: [iter(self.coming)],
            WAYS[1]: [iter(())],
            WAYS[2]: [expected_arrivals(scheduler, entry.now, seed) for seed in seeds],
        }
        for way, streams in arrivals.items():
            draws = [self._ahead(entry, stream) for stream in streams]
            first_s, last_s = fmean(each.first_token_s for each in draws), fmean(each.last_token_s for each in draws)
            found[way] = first_s - request.arrival_s, (last_s - first_s) / gaps
        sequence = next(each for each in scheduler.open_sequences if each.request.request_id == request.request_id)
        scheduler.speeds.speak_for_all()
        estimate = scheduler.admission.estimate(sequence, entry.now)
        found[WAYS[3]] = entry.now + estimate.first_token_s - request.arrival_s, estimate.token_s
        known = self._ahead(entry, iter(self.coming), is_speed_known=True)
        found[WAYS[4]] = known.first_token_s - request.arrival_s, (known.last_token_s - known.first_token_s) / gaps
        self.predicted[request.request_id] = found

    def _real_step_s(self, domain_id: str, shape: StepShape, begin_s: float) -> float:
        """What a step took that began at that time, by those of its kind that really ran around it."""
        said_s = self.scheduler.speeds.model_of(domain_id).uncorrected_step_s(shape)
        return said_s * self._real.ratio_at(shape.chunks > 0, begin_s - self._real.first_s)

    def _ahead(self, entry: Added, arrivals: Iterator[Arrival], *, is_speed_known: bool = False) -> Forecast:
        request_id = entry.request.request_id
        step_s = self._real_step_s if is_speed_known else None
        began_s = self.began_s
        return in_a_fork(
            lambda: forecast(
                self.scheduler,
                entry.now,
                [request_id],
                started_s=began_s,
                arrivals=arrivals,
                step_s=step_s,
                pace=ENGINE_PACE,
            )[request_id]
        )


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
