"""A request inside the scheduler: what is computed, what it holds, what it was promised, where its time went."""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING

from superinfer.contracts.contract import SLOContract
from superinfer.scheduler import columns
from superinfer.scheduler.blocks import Kept, KVMemory
from superinfer.scheduler.columns import CountColumn, LeftRow, SequenceTable, TimeColumn
from superinfer.scheduler.outputs import StageTimes
from superinfer.scheduler.request import Request

if TYPE_CHECKING:
    from superinfer.scheduler.domain import DomainState


class Status(enum.Enum):
    """Where a sequence is."""

    WAITING = columns.WAITING
    RUNNING = columns.RUNNING
    ROTATED = columns.ROTATED
    FINISHED = columns.FINISHED


_STATUSES = tuple(Status)


class SequenceState:
    """One request's state. Counters include steps that are planned and still in flight; `outputs` are the `committed`
    tokens, which nobody collects in a simulation.

    `prefill_target` is the number of tokens to prefill before the next one is sampled: the prompt, and after a move the
    committed outputs as well. What a plan asks of every sequence lies in a row of `table`, which `leave_table` gives
    back; a sequence that is made without a table, or has left it, has one of its own. `precision` is that of the domain
    that computed its KV, None where domains of several did.
    """

    __slots__ = (
        "_host_blocks",
        "block_names",
        "cached_tokens",
        "contract",
        "domain",
        "domain_deaths",
        "domain_ids",
        "is_isolated",
        "kept",
        "known_to_worker",
        "outputs",
        "precision",
        "request",
        "row",
        "saved_tokens",
        "sequence_id",
        "shared_blocks",
        "stage",
        "stage_since_s",
        "stages",
        "table",
    )

    computed = CountColumn(columns.COMPUTED)
    prefill_target = CountColumn(columns.PREFILL_TARGET)
    planned_outputs = CountColumn(columns.PLANNED_OUTPUTS)
    expected_outputs = CountColumn(columns.EXPECTED_OUTPUTS)
    committed = CountColumn(columns.COMMITTED)
    in_flight = CountColumn(columns.IN_FLIGHT)
    planned_in = CountColumn(columns.PLANNED_IN)
    contract_number = CountColumn(columns.CONTRACT)
    deadline_s = TimeColumn(columns.DEADLINE_S)
    ttft_deadline_s = TimeColumn(columns.TTFT_DEADLINE_S)
    tpot_s = TimeColumn(columns.TPOT_S)
    last_token_s = TimeColumn(columns.LAST_TOKEN_S)
    longest_gap_s = TimeColumn(columns.LONGEST_GAP_S)

    def __init__(
        self, sequence_id: int, request: Request, contract: SLOContract, table: SequenceTable | None = None
    ) -> None:
        self.sequence_id = sequence_id
        self.request = request
        self.contract = contract
        table = table or SequenceTable(1)
        self.table: SequenceTable | LeftRow = table
        self.outputs: list[int] = []
        self.row = table.acquire(self)
        self.domain: DomainState | None = None
        self.domain_ids: list[str] = []
        self.domain_deaths = 0
        self.is_isolated = False
        self.kept: Kept | None = None
        self.block_names: list[bytes] = []
        self.precision: bytes | None = None
        self.shared_blocks = 0
        self.saved_tokens = 0
        self.cached_tokens = 0
        self.known_to_worker = False
        self.stages = StageTimes()
        self.stage = "queue"
        self.stage_since_s = request.arrival_s
        table.block_lists[self.row] = []
        self._host_blocks: list[int] = []
        counts, times = self.table.count_cells, self.table.time_cells
        base = self.row * columns.COUNTS
        counts[base + columns.SEQUENCE_ID] = sequence_id
        counts[base + columns.PREFILL_TARGET] = len(request.prompt_token_ids)
        counts[base + columns.MAX_TOKENS] = request.sampling.max_tokens
        base = self.row * columns.TIMES
        times[base + columns.ARRIVAL_S] = request.arrival_s
        times[base + columns.LOG_PRIORITY] = math.log(contract.priority)
        if contract.deadline_ms is not None:
            self.deadline_s = request.arrival_s + contract.deadline_ms / 1e3
        if contract.ttft_deadline_ms is not None:
            self.ttft_deadline_s = request.arrival_s + contract.ttft_deadline_ms / 1e3
        if contract.tpot_deadline_ms is not None:
            self.tpot_s = contract.tpot_deadline_ms / 1e3

    def leave_table(self) -> None:
        """Take the row along and free it for another sequence."""
        table, row = self.table, self.row
        if isinstance(table, SequenceTable):
            self.table, self.row = LeftRow(table, row), 0
            table.release(row)

    @property
    def status(self) -> Status:
        """Where the sequence is."""
        return _STATUSES[self.table.count_cells[self.row * columns.COUNTS + columns.STATUS]]

    @status.setter
    def status(self, status: Status) -> None:
        self.table.count_cells[self.row * columns.COUNTS + columns.STATUS] = status.value

    @property
    def is_lost(self) -> bool:
        """Whether it could not make it any more when a plan last looked."""
        return bool(self.table.count_cells[self.row * columns.COUNTS + columns.IS_LOST])

    @is_lost.setter
    def is_lost(self, is_lost: bool) -> None:
        self.table.count_cells[self.row * columns.COUNTS + columns.IS_LOST] = is_lost

    @property
    def first_token_s(self) -> float | None:
        """When the first output token was committed; None before."""
        time_s: float = self.table.time_cells[self.row * columns.TIMES + columns.FIRST_TOKEN_S]
        return None if time_s != time_s else time_s

    @property
    def blocks(self) -> list[int]:
        """Device blocks in the order of the tokens; `add_blocks` appends."""
        return self.table.block_lists[self.row]

    @blocks.setter
    def blocks(self, blocks: list[int]) -> None:
        self.table.block_lists[self.row] = blocks
        self.table.count_cells[self.row * columns.COUNTS + columns.BLOCKS] = len(blocks)

    def add_blocks(self, blocks: list[int]) -> None:
        """Append to the block table."""
        own = self.table.block_lists[self.row]
        own.extend(blocks)
        self.table.count_cells[self.row * columns.COUNTS + columns.BLOCKS] = len(own)

    @property
    def host_blocks(self) -> list[int]:
        """Host blocks in the order of the tokens: of a rotated sequence, or a copy of the first `saved_tokens`."""
        return self._host_blocks

    @host_blocks.setter
    def host_blocks(self, blocks: list[int]) -> None:
        self._host_blocks = blocks
        self.table.count_cells[self.row * columns.COUNTS + columns.HOST_BLOCKS] = len(blocks)

    @property
    def arrival_s(self) -> float:
        """When the request was (or should have been) sent."""
        return self.request.arrival_s

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt_token_ids)

    @property
    def prefill_left(self) -> int:
        """Tokens still to be prefilled before the next token can be sampled."""
        return max(self.prefill_target - self.computed, 0)

    @property
    def can_decode(self) -> bool:
        """True where the next thing to do is a decode."""
        return self.computed >= self.prefill_target and self.planned_outputs < self.request.sampling.max_tokens

    @property
    def is_done_planning(self) -> bool:
        """True where every token is planned and only results are awaited."""
        return self.planned_outputs >= self.request.sampling.max_tokens

    @property
    def outputs_left(self) -> int:
        """Output tokens expected that are not planned yet; at least one while the sequence lives."""
        return max(min(self.expected_outputs, self.request.sampling.max_tokens) - self.planned_outputs, 1)

    def enter_stage(self, stage: str, now: float) -> None:
        """Book the time since the last change to the stage left, and enter another."""
        if stage == self.stage:
            return
        spent = getattr(self.stages, f"{self.stage}_s") + max(now - self.stage_since_s, 0.0)
        setattr(self.stages, f"{self.stage}_s", spent)
        self.stage, self.stage_since_s = stage, now
        self.table.count_cells[self.row * columns.COUNTS + columns.IS_DECODING] = stage == "decode"

    def kept_in(self, memory: KVMemory) -> Kept | None:
        """What is kept of it where a domain with this memory can read it; what lies elsewhere is computed anew."""
        return self.kept if self.kept is not None and self.kept.memory is memory else None

    def closed_stages(self, now: float) -> StageTimes:
        """The stage times with the current stage's share up to now."""
        self.enter_stage("closed", now)
        return self.stages

    def restart(self, kept: Kept | None = None) -> None:
        """Wait again, without blocks: what is not in `kept` is prefilled again, committed outputs with the prompt.

        Until the sequence enters a domain `computed` says how much that will be if none of it is given up meanwhile.
        """
        self.kept = kept
        self.shared_blocks = 0
        self.saved_tokens = 0
        self.computed = 0 if kept is None else kept.tokens
        self.planned_outputs = self.committed
        self.prefill_target = self.prompt_length + self.committed
        self.blocks = []
        self.host_blocks = []
        self.in_flight = 0
        self.known_to_worker = False
        self.domain = None
        self.status = Status.WAITING

    def met(self, now: float) -> bool | None:
        """Whether a request that completes now holds every bounded milestone; None for best effort."""
        if self.contract.is_best_effort:
            return None
        if now > self.deadline_s:
            return False
        first_token_s = self.first_token_s
        if first_token_s is None or first_token_s > self.ttft_deadline_s:
            return False
        gaps = self.committed - 1
        return gaps < 1 or (now - first_token_s) / gaps <= self.tpot_s
