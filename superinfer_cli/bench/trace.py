"""Request traces: when requests came, and how long prompts and outputs were.

Two public formats are read, told apart by the file's ending:

- `.csv`, Azure's LLM inference traces: TIMESTAMP, ContextTokens, GeneratedTokens, a line per request;
- `.jsonl`, Mooncake's traces: an object per line with timestamp (ms), input_length and output_length.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superinfer.contracts.errors import UsageError

CSV_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
JSON_KEYS = ("timestamp", "input_length", "output_length")


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Columns in order of arrival; `arrival_s` counts from the first request. Lengths are at least 1."""

    arrival_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def mean_gap_s(self) -> float:
        """Mean time between arrivals."""
        return float(self.arrival_s[-1]) / (len(self) - 1)

    def unit_gaps(self, count: int) -> NDArray[np.float64]:
        """Gaps before each of `count` requests with mean about 1, in order, from the start again where it ends.

        Between two rounds lies one mean gap.
        """
        gaps = np.diff(self.arrival_s, prepend=-self.mean_gap_s) / self.mean_gap_s
        return np.resize(gaps, count)


def read_trace(path: Path) -> Trace:
    """A trace from a file; UsageError names the file and line and what is accepted."""
    return _read(path, path.stat().st_mtime_ns if path.is_file() else 0)


@lru_cache(maxsize=4)
def _read(path: Path, changed_ns: int) -> Trace:
    read = {".csv": _csv_rows, ".jsonl": _json_rows}.get(path.suffix)
    if read is None:
        raise UsageError(f"trace {path}: a file that ends in .csv (Azure) or .jsonl (Mooncake) is needed")
    try:
        rows = read(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"trace {path}: cannot be read ({error})") from None
    if len(rows) < 2 or rows[0][0] == rows[-1][0]:
        raise UsageError(f"trace {path}: at least two requests at different times are needed")
    arrival = np.array([row[0] for row in rows])
    order = np.argsort(arrival, kind="stable")
    prompts = np.maximum(np.array([row[1] for row in rows], dtype=np.int64), 1)
    outputs = np.maximum(np.array([row[2] for row in rows], dtype=np.int64), 1)
    arrival = arrival[order]
    return Trace(arrival - arrival[0], prompts[order], outputs[order])


_Row = tuple[float, int, int]


def _csv_rows(path: Path) -> list[_Row]:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if missing := [name for name in CSV_COLUMNS if name not in (reader.fieldnames or [])]:
            raise UsageError(f"trace {path}: column {missing[0]} is missing; needed: {', '.join(CSV_COLUMNS)}")
        rows = []
        for number, row in enumerate(reader, start=2):
            try:
                # numpy reads the seventh digit after the point; a UTC offset, which some files have, it does not.
                moment = np.datetime64(row["TIMESTAMP"].removesuffix("+00:00").strip(), "ns")
                rows.append(
                    (int(moment.astype(np.int64)) / 1e9, int(row["ContextTokens"]), int(row["GeneratedTokens"]))
                )
            except (ValueError, TypeError, AttributeError) as error:
                raise UsageError(f"trace {path}: line {number}: {' '.join(str(error).split())}") from None
    return rows


def _json_rows(path: Path) -> list[_Row]:
    rows = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                entry: dict[str, Any] = json.loads(line)
                time_ms, prompt, output = (entry[key] for key in JSON_KEYS)
                rows.append((float(time_ms) / 1e3, int(prompt), int(output)))
            except (ValueError, TypeError, KeyError) as error:
                wanted = f"an object with {', '.join(JSON_KEYS)} is needed"
                raise UsageError(f"trace {path}: line {number}: {wanted} ({type(error).__name__}: {error})") from None
    return rows
