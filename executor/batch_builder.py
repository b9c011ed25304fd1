"""Turns the decodes and prefill chunks of a plan into one flat token batch."""

from __future__ import annotations

import numpy as np

from superinfer.executor.model.batch import IntArray, PrefillChunk, TokenBatch
from superinfer.executor.sequence import Sequence
from superinfer.scheduler.steps import SequenceStep

Chunk = tuple[SequenceStep, Sequence]


def build_batch(decodes: list[Sequence], prefills: list[Chunk], block_size: int) -> tuple[TokenBatch, list[Sequence]]:
    """The batch, decodes first, and the sequences that sample in it, in the order of `sample_rows`.

    A decode computes the last token that the worker knows and samples; a chunk samples where it reaches that token. A
    chunk of one token attends like a decode and goes with them.
    """
    short = [item for item in prefills if item[0].count == 1]
    chunks = [item for item in prefills if item[0].count != 1]
    single = decodes + [sequence for _, sequence in short]
    rows = len(single)
    tokens = rows + sum(step.count for step, _ in chunks)
    token_ids, positions, slots = (np.empty(tokens, np.int64) for _ in range(3))
    starts = [len(sequence.token_ids) - 1 for sequence in decodes] + [step.start for step, _ in short]
    token_ids[:rows] = [sequence.token_ids[start] for sequence, start in zip(single, starts, strict=True)]
    positions[:rows] = starts
    tables = _padded_tables(single)
    last_blocks = tables[np.arange(rows), positions[:rows] // block_size] if rows else tables.reshape(0)
    slots[:rows] = last_blocks * block_size + positions[:rows] % block_size
    sampling = list(decodes)
    sample_rows = list(range(len(decodes)))
    for row, (step, sequence) in enumerate(short, len(decodes)):
        if step.start + 1 == len(sequence.token_ids):
            sample_rows.append(row)
            sampling.append(sequence)
    row, found = rows, []
    for step, sequence in chunks:
        end = step.start + step.count
        span = slice(row, row + step.count)
        table = sequence.block_table()
        token_ids[span] = sequence.token_ids[step.start : end]
        positions[span] = np.arange(step.start, end)
        slots[span] = table[positions[span] // block_size] * block_size + positions[span] % block_size
        found.append(PrefillChunk(row, step.start, step.count, table))
        row += step.count
        if end == len(sequence.token_ids):
            sample_rows.append(row - 1)
            sampling.append(sequence)
    batch = TokenBatch(
        token_ids=token_ids,
        positions=positions,
        slots=slots,
        block_tables=tables,
        context_lengths=positions[:rows] + 1,
        sample_rows=np.asarray(sample_rows, np.int64),
        chunks=found,
    )
    return batch, sampling


def _padded_tables(sequences: list[Sequence]) -> IntArray:
    width = max((len(sequence.blocks) for sequence in sequences), default=0)
    tables = np.zeros((len(sequences), width), np.int64)
    for i, sequence in enumerate(sequences):
        tables[i, : len(sequence.blocks)] = sequence.block_table()
    return tables
