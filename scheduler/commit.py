"""Commit the tokens of a step's result: each is taken once, whatever the worker sends and whoever has gone."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np

from superinfer.scheduler.columns import SequenceTable
from superinfer.scheduler.domain import Batch
from superinfer.scheduler.kernels import commit
from superinfer.scheduler.outputs import TokensOutput
from superinfer.scheduler.sequence import SequenceState
from superinfer.scheduler.steps import StepResult


def commit_tokens(
    table: SequenceTable, sequences: Mapping[int, SequenceState], batch: Batch, result: StepResult, now: float
) -> TokensOutput:
    """Take the tokens that are due, leave the others. `sequences` are those alive, by id; `batch` is the step's.

    As a rule the whole batch has its tokens, and those of ended prefills follow.
    """
    ids, indices, tokens = result.sequence_ids, result.output_indices, result.token_ids
    done = len(batch.sequence_ids)
    if ids[:done] != batch.sequence_ids or not _commit_batch(table, batch, indices[:done], tokens, now):
        done = 0
    if done == len(ids):
        return TokensOutput(batch.request_ids, indices, tokens)
    due: dict[int, int] = {}
    for i in range(done, len(ids)):
        owner = sequences.get(ids[i])
        if owner is not None and indices[i] == owner.committed:
            due.setdefault(owner.row, i)
    rest = Batch.of(table, np.array([*due], np.int64))
    rest_indices, rest_tokens = [indices[i] for i in due.values()], [tokens[i] for i in due.values()]
    _commit_batch(table, rest, rest_indices, rest_tokens, now)
    return TokensOutput(
        batch.request_ids[:done] + rest.request_ids, indices[:done] + rest_indices, tokens[:done] + rest_tokens
    )


def _commit_batch(table: SequenceTable, batch: Batch, indices: list[int], tokens: list[int], now: float) -> bool:
    """One token for each of the batch, or none where one is not due."""
    if not tokens and not batch.sequence_ids:
        return True
    begins = np.empty(len(batch.rows), np.int64)
    numbers = np.array(indices, np.int64)
    begun = commit(table.counts, table.times, batch.rows, batch.ids, numbers, now, begins)
    if begun < 0:
        return False
    deque(map(list.append, batch.outputs, tokens), maxlen=0)
    for row in begins[:begun].tolist():
        owner = table.owners[row]
        assert owner is not None
        owner.enter_stage("decode", now)
    return True
