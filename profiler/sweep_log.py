"""The samples of a sweep under way, on disk as they are taken, so that an interrupted one can go on.

One JSON object a line: first what is measured, then a sample each. A log of anything else is begun anew, and so is one
older than `MAX_AGE_S`, since a machine changes. A last line that was cut off is left out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from superinfer.profiler.architecture import ModelArchitecture
from superinfer.profiler.sweep_points import SweepPoint

MAX_AGE_S = 3600.0


class SweepSubject(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep measures: samples of another are of no use."""

    model: str
    architecture: ModelArchitecture
    dtype: str
    device: str
    threads: int


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One timed step: its time, that of the visit with its preparation, and when (wall clock) it was over."""

    point: str
    step_s: float
    visit_s: float
    wall_s: float


class SweepLog:
    """The samples in one file; `append` adds to it, `remove` ends it."""

    def __init__(self, path: Path, subject: SweepSubject, *, now_s: float | None = None) -> None:
        """Read the samples there are; OSError where the file can neither be read nor made."""
        self._path = path
        self._opened_s = time.time() if now_s is None else now_s
        self.samples: list[Sample] = []
        header = msgspec.json.encode(subject)
        if path.exists() and self._opened_s - path.stat().st_mtime < MAX_AGE_S:
            first, *lines = path.read_bytes().split(b"\n")
            if first == header:
                self.samples = [sample for line in lines if (sample := _decoded(line)) is not None]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\n".join([header, *map(msgspec.json.encode, self.samples)]) + b"\n")

    @property
    def spent_s(self) -> float:
        """Time that the samples have taken."""
        return sum(sample.visit_s for sample in self.samples)

    def known(self, points: Sequence[SweepPoint]) -> dict[SweepPoint, list[tuple[float, float]]]:
        """(step time, when, before the log was opened) of the samples by point, in the order in which they came."""
        by_name = {point.name: point for point in points}
        found: dict[SweepPoint, list[tuple[float, float]]] = {}
        for sample in self.samples:
            if sample.point in by_name:
                found.setdefault(by_name[sample.point], []).append((sample.step_s, sample.wall_s - self._opened_s))
        return found

    def append(self, point: SweepPoint, step_s: float, visit_s: float) -> None:
        """Keep a sample; it is in the file when this returns."""
        sample = Sample(point=point.name, step_s=step_s, visit_s=visit_s, wall_s=time.time())
        self.samples.append(sample)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(sample) + b"\n")

    def remove(self) -> None:
        """The sweep is complete."""
        self._path.unlink(missing_ok=True)


def _decoded(line: bytes) -> Sample | None:
    try:
        decoded: Any = msgspec.json.decode(line, type=Sample)
    except msgspec.MsgspecError:
        return None
    sample: Sample = decoded
    return sample
