"""fcfs, round robin, static priority, shortest job and earliest deadline first, on the shared composition."""

from __future__ import annotations

import math

import numpy as np

from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.columns import IntArray
from superinfer.scheduler.policies.budget import BudgetPolicy
from superinfer.scheduler.policies.slack_kernels import order_by_remaining
from superinfer.scheduler.sequence import SequenceState
from superinfer.scheduler.slack import remaining_s
from superinfer.scheduler.step_builder import StepBuilder


class FirstComeFirstServed(BudgetPolicy):
    """By arrival, as vLLM does by default."""

    name = "fcfs"

    def rank(self, sequence: SequenceState, now: float) -> tuple[float, ...]:
        """By arrival."""
        return (sequence.arrival_s, sequence.sequence_id)


class RoundRobin(FirstComeFirstServed):
    """Contracts take turns at entering; within one, by arrival. What a fair gateway does."""

    name = "round_robin"

    def __init__(self) -> None:
        self._last_turn: dict[str, int] = {}
        self._turn = 0

    def next_waiting(self, builder: StepBuilder) -> SequenceState | None:
        """The head of the contract whose turn lies furthest back."""
        return min(
            builder.queues.heads(),
            key=lambda s: (self._last_turn.get(s.request.contract_id, -1), *self.rank(s, builder.now)),
            default=None,
        )

    def admit(self, builder: StepBuilder, sequence: SequenceState, tokens: int) -> bool:
        """A contract whose waiting sequence enters has had its turn."""
        enters = sequence.sequence_id not in builder.domain.rotated
        admitted = super().admit(builder, sequence, tokens)
        if admitted and enters:
            self._turn += 1
            self._last_turn[sequence.request.contract_id] = self._turn
        return admitted


class StaticPriority(BudgetPolicy):
    """By the contract's priority, then the tighter end-to-end bound, then arrival."""

    name = "priority"

    def rank(self, sequence: SequenceState, now: float) -> tuple[float, ...]:
        """By class, then arrival."""
        bound_ms = sequence.contract.deadline_ms
        return (
            -sequence.contract.priority,
            math.inf if bound_ms is None else bound_ms,
            sequence.arrival_s,
            sequence.sequence_id,
        )


class ShortestJobFirst(BudgetPolicy):
    """By predicted remaining time. What has been worked on has less left, so that equals do not preempt each other."""

    name = "sjf"

    def __init__(self, model: LatencyModel) -> None:
        self._model = model

    def running_rows(self, builder: StepBuilder) -> IntArray:
        """By remaining time: work that proceeds changes the order."""
        table, rows = builder.table, builder.domain.running.rows
        order = np.empty(len(rows), np.int64)
        ground = builder.ground
        order_by_remaining(
            table.counts, table.times, rows, ground.constants, ground.points, builder.model.correction, order
        )
        return rows[order]

    def rank(self, sequence: SequenceState, now: float) -> tuple[float, ...]:
        """By remaining time, then arrival."""
        return (self.waiting_key(sequence), sequence.arrival_s, sequence.sequence_id)

    def waiting_key(self, sequence: SequenceState) -> float:
        """Remaining time by the fitted constants: the online factor is the same for all, and would age in a queue."""
        return remaining_s(sequence, self._model) / self._model.correction


class EarliestDeadlineFirst(BudgetPolicy):
    """By absolute end-to-end deadline; best effort last."""

    name = "edf"

    def rank(self, sequence: SequenceState, now: float) -> tuple[float, ...]:
        """By deadline, then arrival."""
        return (sequence.deadline_s, sequence.arrival_s, sequence.sequence_id)

    def waiting_key(self, sequence: SequenceState) -> float:
        """By deadline."""
        return min(sequence.deadline_s, sequence.ttft_deadline_s)
