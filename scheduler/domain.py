"""One fault domain inside the scheduler: its KV blocks, the sequences it holds, the steps in flight."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from superinfer.profiler.latency_model import StepShape
from superinfer.scheduler.blocks import SEGMENT_BITS, BlockPool, KVMemory, device_pool
from superinfer.scheduler.columns import SEQUENCE_ID, IntArray, SequenceTable
from superinfer.scheduler.kernels import are_owned
from superinfer.scheduler.sequence import SequenceState


class Members(dict[int, SequenceState]):
    """Sequences by id, in order of entry, and their rows: found once, until somebody comes or goes."""

    def __init__(self) -> None:
        super().__init__()
        self._row_of: dict[int, int] = {}
        self._rows: IntArray | None = None
        self._sequences: list[SequenceState] | None = None
        self._ordered: IntArray | None = None

    def in_order(self, rank: Callable[[SequenceState], tuple[float, ...]]) -> IntArray:
        """The members' rows by rank, which has to be the same one whenever this is called and last as long as a member
        stays; not to be written to.
        """
        if self._ordered is None:
            self._ordered = np.array([sequence.row for sequence in sorted(self.values(), key=rank)], np.int64)
        return self._ordered

    @property
    def rows(self) -> IntArray:
        """The members' rows in order of entry; not to be written to."""
        if self._rows is None:
            self._rows = np.fromiter(self._row_of.values(), np.int64, len(self))
        return self._rows

    @property
    def sequences(self) -> list[SequenceState]:
        """The members in order of entry, the same list until somebody comes or goes; not to be written to."""
        if self._sequences is None:
            self._sequences = list(self.values())
        return self._sequences

    def __setitem__(self, sequence_id: int, sequence: SequenceState) -> None:
        self._change()
        self._row_of[sequence_id] = sequence.row
        super().__setitem__(sequence_id, sequence)

    def __delitem__(self, sequence_id: int) -> None:
        self._change()
        del self._row_of[sequence_id]
        super().__delitem__(sequence_id)

    def pop(self, sequence_id: int, *default: Any) -> Any:
        """As of a dict."""
        self._change()
        self._row_of.pop(sequence_id, None)
        return super().pop(sequence_id, *default)

    def clear(self) -> None:
        """As of a dict."""
        self._change()
        self._row_of.clear()
        super().clear()

    def _change(self) -> None:
        self._rows = self._ordered = self._sequences = None


@dataclass(slots=True, eq=False)
class Batch:
    """The sequences that decode in a step, by row: their order means nothing to a worker, and so the same sequences
    make the same batch, which serves all steps in which they decode.

    `ids` tells whether a row still belongs to the sequence it belonged to. `chosen` are the rows in the order in which
    they were put into the last step, `chosen_ids` whose they were.
    """

    rows: IntArray
    ids: IntArray
    sequence_ids: list[int]
    request_ids: list[str]
    outputs: list[list[int]]
    chosen: IntArray
    chosen_ids: IntArray

    @classmethod
    def of(cls, table: SequenceTable, rows: IntArray) -> Batch:
        """The batch of the sequences in these rows, in this order."""
        ids, numbers = table.counts[rows, SEQUENCE_ID], rows.tolist()
        request_ids, outputs = map(table.request_ids.__getitem__, numbers), map(table.outputs.__getitem__, numbers)
        return cls(rows, ids, ids.tolist(), [*request_ids], [*outputs], rows, ids)

    def after(self, table: SequenceTable, chosen: IntArray) -> Batch:
        """The batch of a step into which these rows were put, in any order; this one if it is of the same sequences."""
        if len(chosen) == len(self.rows):
            if not len(chosen) or are_owned(table.counts, chosen, self.chosen, self.chosen_ids):
                return self
            rows = np.sort(chosen)
            if are_owned(table.counts, rows, self.rows, self.ids):
                self.chosen, self.chosen_ids = chosen.copy(), table.counts[chosen, SEQUENCE_ID]
                return self
            return Batch.of(table, rows)
        return Batch.of(table, np.sort(chosen))


@dataclass(frozen=True, slots=True)
class Pacing:
    """How a step of nothing but best effort gives way to bandwidth that others have reserved: it rests for `pause_s`,
    then moves `moved_gb` over `paced_s`, where 0 s is as fast as it can. Where its own domain holds none, it
    `leaves_core` to whoever else wants it.
    """

    paced_s: float = 0.0
    pause_s: float = 0.0
    moved_gb: float = 0.0
    leaves_core: bool = False

    @property
    def is_slow_on_purpose(self) -> bool:
        """Whether the time it takes says nothing of the device."""
        return self.leaves_core or self.paced_s > 0.0 or self.pause_s > 0.0


NOT_PACED = Pacing()


@dataclass(slots=True)
class InFlightStep:
    """A step that was planned and not yet observed: its decodes, the sequences that prefill, and of each the tokens
    from `starts` up to `ends`.

    `lent` are blocks of other domains that the step reads and nobody holds any more once it is over; `saved_before`
    says of the sequences that it saves how many tokens had been saved. `pacing` is how it gives way to reservations.
    """

    step_id: int
    shape: StepShape
    batch: Batch
    prefills: list[SequenceState]
    starts: list[int]
    ends: list[int]
    rotated_out: list[int]
    rotated_in: list[int]
    lent: list[int]
    saved_before: dict[int, int]
    pacing: Pacing = NOT_PACED


@dataclass(slots=True, eq=False)
class DomainState:
    """What the scheduler knows of one domain. `running` and `rotated` are keyed by sequence id, in order of entry;
    `batch` is the last step's. Sequences may hold blocks of any pool of `memory`; new ones come from `device_blocks`.
    `segment` is the number of that pool where what is in it outlives the domain, else None. Counted are the times that
    a sequence gave way: `rotations` of its KV to host memory, `recomputations` where that had no room for it.

    `precision` is that of what computes here: a block that others share is named after it as well as after its tokens,
    since the same tokens have other keys and values in another precision.
    """

    domain_id: str
    memory: KVMemory
    device_blocks: BlockPool
    host_blocks: BlockPool
    segment: int | None = None
    device_outlives: bool = True
    precision: bytes = b""
    saved_s: float = -math.inf
    is_up: bool = True
    running: Members = field(default_factory=Members)
    rotated: Members = field(default_factory=Members)
    in_flight: dict[int, InFlightStep] = field(default_factory=dict)
    finished: list[int] = field(default_factory=list)
    next_step_id: int = 0
    batch: Batch | None = None
    rotations: int = 0
    recomputations: int = 0

    def in_step(self) -> set[int]:
        """The ids of the sequences that have work in a step in flight."""
        found: set[int] = set()
        for step in self.in_flight.values():
            found.update(step.batch.sequence_ids, (sequence.sequence_id for sequence in step.prefills))
        return found

    def surely_computed(self) -> dict[int, int]:
        """For each sequence the tokens whose KV is in its blocks whatever becomes of the steps in flight."""
        found = {
            sequence_id: min(sequence.computed, sequence.prompt_length + sequence.committed - 1)
            for sequence_id, sequence in (*self.running.items(), *self.rotated.items())
        }
        for step in self.in_flight.values():
            for sequence, start in zip(step.prefills, step.starts, strict=True):
                if sequence.sequence_id in found:
                    found[sequence.sequence_id] = min(found[sequence.sequence_id], start)
            for sequence_id in (*step.rotated_out, *step.rotated_in):
                found.pop(sequence_id, None)
        return found

    def surely_saved(self) -> dict[int, int]:
        """For each sequence the tokens whose KV is in its host blocks whatever becomes of the steps in flight."""
        found = {each.sequence_id: each.saved_tokens for each in self.running.values()}
        computed = self.surely_computed()
        found.update({each: computed.get(each, 0) for each in self.rotated})
        for step in self.in_flight.values():
            for sequence_id, tokens in step.saved_before.items():
                if sequence_id in found:
                    found[sequence_id] = min(found[sequence_id], tokens)
            for sequence_id in step.rotated_out:
                found.pop(sequence_id, None)
        return found

    def find(self, name: bytes) -> int | None:
        """The block of this name among those that can be read here."""
        return self.memory.find(name) if self.device_outlives else self.device_blocks.find(name)

    def name(self, block: int, name: bytes) -> None:
        """Say what is in a held block; ignored where that can be read in another one as well."""
        if self.find(name) is None:
            self.memory.name(block, name)

    def count_lent(self, blocks: list[int]) -> int:
        """How many of these blocks it can only read."""
        if self.segment is None:
            return 0
        own = device_pool(self.segment)
        return sum(block >> SEGMENT_BITS != own for block in blocks)

    def owns(self, block: int) -> bool:
        """Whether a block is of this domain's own device pool, and not one that it can only read."""
        return self.segment is None or block >> SEGMENT_BITS == device_pool(self.segment)
