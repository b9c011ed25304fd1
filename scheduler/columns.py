"""The figures of all sequences in two tables, one row a sequence, so that compiled loops can pass over many at once.

What a plan asks about hundreds of sequences is in here; what it asks about a few is in `SequenceState`, whose
attributes read and write its row. `superinfer.scheduler.kernels` holds the loops: a change of a column's number has to
go with a change of that file, since compiled code is cached by the file it came from.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from superinfer.scheduler.sequence import SequenceState

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

COUNTS = 16
"""Columns of the table of integers; the first ones are used."""
(
    SEQUENCE_ID,
    STATUS,
    COMPUTED,
    PREFILL_TARGET,
    PLANNED_OUTPUTS,
    MAX_TOKENS,
    EXPECTED_OUTPUTS,
    BLOCKS,
    COMMITTED,
    IN_FLIGHT,
    PLANNED_IN,
    CONTRACT,
    IS_LOST,
    IS_DECODING,
    HOST_BLOCKS,
) = range(15)

TIMES = 8
"""Columns of the table of times. Absent bounds are infinite, an absent time is NaN."""
(
    DEADLINE_S,
    TTFT_DEADLINE_S,
    TPOT_S,
    FIRST_TOKEN_S,
    ARRIVAL_S,
    LOG_PRIORITY,
    LAST_TOKEN_S,
    LONGEST_GAP_S,
) = range(TIMES)

WAITING, RUNNING, ROTATED, FINISHED = range(4)
"""The numbers in STATUS."""

NOBODY = -1
"""SEQUENCE_ID of a row that is free."""


def int_cells(array: IntArray) -> MutableSequence[int]:
    """A flat view of an array in which one cell is read and written at a third of the cost."""
    return cast("MutableSequence[int]", array.reshape(-1).data)


def float_cells(array: FloatArray) -> MutableSequence[float]:
    """A flat view of an array in which one cell is read and written at a third of the cost."""
    return cast("MutableSequence[float]", array.reshape(-1).data)


class SequenceTable:
    """Rows are handed out and taken back; the tables double when they are full.

    `counts` and `times` are the tables, `count_cells` and `time_cells` flat views of them. `owners` is the sequence of
    each row, `request_ids`, `outputs` and `block_lists` are theirs, for whoever would else have to go through hundreds
    of sequences. All but the lists are replaced when the tables grow. `stamps` holds the last of `next_stamp`.
    """

    def __init__(self, rows: int = 64) -> None:
        self.counts: IntArray = np.zeros((0, COUNTS), np.int64)
        self.times: FloatArray = np.zeros((0, TIMES), np.float64)
        self.owners: list[SequenceState | None] = []
        self.request_ids: list[str] = []
        self.outputs: list[list[int]] = []
        self.block_lists: list[list[int]] = []
        self._free: list[int] = []
        self.stamps: IntArray = np.zeros(1, np.int64)
        self._grow(rows)

    def acquire(self, sequence: SequenceState) -> int:
        """A row for this sequence: zeros, no bounds, no times."""
        if not self._free:
            self._grow(len(self.owners))
        row = self._free.pop()
        self.counts[row] = 0
        self.times[row] = math.inf
        self.time_cells[row * TIMES + FIRST_TOKEN_S] = self.time_cells[row * TIMES + LAST_TOKEN_S] = math.nan
        self.time_cells[row * TIMES + LONGEST_GAP_S] = 0.0
        self.owners[row] = sequence
        self.request_ids[row] = sequence.request.request_id
        self.outputs[row] = sequence.outputs
        return row

    def lend(self, count: int) -> list[int]:
        """Rows for sequences that nobody has objects of; to be released."""
        while len(self._free) < count:
            self._grow(len(self.owners))
        rows = self._free[-count:]
        del self._free[-count:]
        return rows

    def release(self, row: int) -> None:
        """Nobody reads this row any more."""
        self.count_cells[row * COUNTS + SEQUENCE_ID] = NOBODY
        self.owners[row] = None
        self.outputs[row] = self.block_lists[row] = []
        self._free.append(row)

    def next_stamp(self) -> int:
        """A number for PLANNED_IN that no plan has had before."""
        self.stamps[0] += 1
        return int(self.stamps[0])

    def sequences(self, rows: IntArray) -> list[SequenceState]:
        """Whose rows these are."""
        return [owner for row in rows.tolist() if (owner := self.owners[row]) is not None]

    def _grow(self, more: int) -> None:
        old = len(self.owners)
        counts, times = np.zeros((old + more, COUNTS), np.int64), np.zeros((old + more, TIMES), np.float64)
        counts[:old], times[:old] = self.counts, self.times
        counts[old:, SEQUENCE_ID] = NOBODY
        self.counts, self.times = counts, times
        self.count_cells, self.time_cells = int_cells(counts), float_cells(times)
        self.owners += [None] * more
        self.request_ids += [""] * more
        self.outputs += [[]] * more
        self.block_lists += [[]] * more
        self._free.extend(range(old + more - 1, old - 1, -1))


class LeftRow:
    """The figures of a sequence that has left its table: plain lists in the place of a table with one row."""

    __slots__ = ("block_lists", "count_cells", "time_cells")

    def __init__(self, table: SequenceTable, row: int) -> None:
        self.count_cells: MutableSequence[int] = table.counts[row].tolist()
        self.time_cells: MutableSequence[float] = table.times[row].tolist()
        self.block_lists: list[list[int]] = [table.block_lists[row]]


class CountColumn:
    """A sequence's integer in its row."""

    __slots__ = ("_column",)

    def __init__(self, column: int) -> None:
        self._column = column

    def __get__(self, sequence: SequenceState, owner: type | None = None) -> int:
        return sequence.table.count_cells[sequence.row * COUNTS + self._column]

    def __set__(self, sequence: SequenceState, value: int) -> None:
        sequence.table.count_cells[sequence.row * COUNTS + self._column] = value


class TimeColumn:
    """A sequence's time or bound in its row; infinite where there is none."""

    __slots__ = ("_column",)

    def __init__(self, column: int) -> None:
        self._column = column

    def __get__(self, sequence: SequenceState, owner: type | None = None) -> float:
        return sequence.table.time_cells[sequence.row * TIMES + self._column]

    def __set__(self, sequence: SequenceState, value: float) -> None:
        sequence.table.time_cells[sequence.row * TIMES + self._column] = value
