"""The tokens of one step as the decoder takes them: decodes first, then prefill chunks, in one flat batch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


@dataclass(slots=True)
class PrefillChunk:
    """Tokens [start, start + count) of one sequence, at rows [first_row, first_row + count) of the batch."""

    first_row: int
    start: int
    count: int
    block_table: IntArray


@dataclass(slots=True)
class TokenBatch:
    """Rows of a step.

    `token_ids`, `positions` and `slots` (block · block_size + offset in the device pool) have one entry a token.
    The first `len(context_lengths)` rows are decodes: row i attends to `context_lengths[i]` tokens, itself
    included, through `block_tables[i]`. `sample_rows` are the rows whose logits are wanted.
    """

    token_ids: IntArray
    positions: IntArray
    slots: IntArray
    block_tables: IntArray
    context_lengths: IntArray
    sample_rows: IntArray
    chunks: list[PrefillChunk] = field(default_factory=list)
