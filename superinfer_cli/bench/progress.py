"""Live progress of a run on stderr: sent, done and met so far, per class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from superinfer.cli.bench.load_generator import Record
from superinfer.cli.bench.workload import PlannedRequest
from superinfer.cli.console import err
from superinfer.contracts.contract import SLOContract
from superinfer.results.outcome import judge


class LoadProgress:
    """One bar per class; a context manager. The bars vanish at the end, the table replaces them."""

    def __init__(self, policy: str, workload: Sequence[PlannedRequest], contracts: Mapping[str, SLOContract]) -> None:
        self._contracts = contracts
        self._sent: Counter[str] = Counter()
        self._done: Counter[str] = Counter()
        self._met: Counter[str] = Counter()
        totals = Counter(planned.service_id for planned in workload)
        self._progress = Progress(
            TextColumn("{task.description}", style="bold"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("done · {task.fields[detail]}"),
            TimeElapsedColumn(),
            console=err,
            transient=True,
            refresh_per_second=2,
            disable=not err.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {
            service_id: self._progress.add_task(f"{policy} {service_id}", total=total, detail="")
            for service_id, total in totals.items()
        }

    def __enter__(self) -> LoadProgress:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def on_sent(self, record: Record) -> None:
        """A request was sent."""
        self._sent[record.planned.service_id] += 1
        self._show(record.planned.service_id)

    def on_end(self, record: Record) -> None:
        """A request ended."""
        service_id = record.planned.service_id
        outcome = judge(record.measurement(0.0), self._contracts[service_id])
        self._done[service_id] += 1
        self._met[service_id] += outcome.status == "met"
        self._show(service_id)

    def _show(self, service_id: str) -> None:
        done, met = self._done[service_id], self._met[service_id]
        share = f"{met} met ({met / done:.0%})" if done else "none yet"
        self._progress.update(
            self._tasks[service_id], completed=done, detail=f"{self._sent[service_id]} sent · {share}"
        )
