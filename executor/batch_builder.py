"""Turns the sequence steps of a plan into one flat token batch."""

from __future__ import annotations

import numpy as np

from superinfer.executor.model.batch import IntArray, PrefillChunk, TokenBatch
from superinfer.executor.sequence import Sequence
from superinfer.scheduler.steps import SequenceStep

Work = tuple[SequenceStep, Sequence]


def build_batch(work: list[Work], block_size: int) -> tuple[TokenBatch, list[Sequence]]:
    """The batch, decodes first, and the sequences that sample in it, in the order of `sample_rows`.

    A step samples where it reaches the last token that the worker knows.
    """
    decodes = [item for item in work if _is_decode(item)]
    ordered = decodes + [item for item in work if not _is_decode(item)]
    tokens = sum(step.count for step, _ in ordered)
    token_ids, positions, slots = (np.empty(tokens, np.int64) for _ in range(3))
    chunks: list[PrefillChunk] = []
    sample_rows: list[int] = []
    sampling: list[Sequence] = []
    row = 0
    for step, sequence in ordered:
        end = step.start + step.count
        rows = slice(row, row + step.count)
        table = sequence.block_table()
        token_ids[rows] = sequence.token_ids[step.start : end]
        positions[rows] = np.arange(step.start, end)
        slots[rows] = table[positions[rows] // block_size] * block_size + positions[rows] % block_size
        if not _is_decode((step, sequence)):
            chunks.append(PrefillChunk(row, step.start, step.count, table))
        row += step.count
        if end == len(sequence.token_ids):
            sample_rows.append(row - 1)
            sampling.append(sequence)
    batch = TokenBatch(
        token_ids=token_ids,
        positions=positions,
        slots=slots,
        block_tables=_padded_tables([sequence for _, sequence in decodes]),
        context_lengths=positions[: len(decodes)] + 1,
        sample_rows=np.asarray(sample_rows, np.int64),
        chunks=chunks,
    )
    return batch, sampling


def _is_decode(item: Work) -> bool:
    """A single token attends like a decode whatever phase it belongs to."""
    return item[0].count == 1


def _padded_tables(sequences: list[Sequence]) -> IntArray:
    width = max((len(sequence.blocks) for sequence in sequences), default=0)
    tables = np.zeros((len(sequences), width), np.int64)
    for i, sequence in enumerate(sequences):
        tables[i, : len(sequence.blocks)] = sequence.blocks
    return tables
