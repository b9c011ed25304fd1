"""What a worker remembers of one sequence: its tokens, its block table, and whether it has ended."""

from __future__ import annotations

import numpy as np

from superinfer.executor.model.batch import IntArray
from superinfer.scheduler.request import SamplingParams
from superinfer.scheduler.steps import FinishReason, NewSequence


class Sequence:
    """Tokens known so far and the device blocks that hold their keys and values."""

    def __init__(self, new: NewSequence) -> None:
        self.sequence_id = new.sequence_id
        self.token_ids = list(new.token_ids)
        self.prompt_length = new.prompt_length
        self.sampling: SamplingParams = new.sampling
        self.finish: FinishReason | None = None
        self._blocks: list[int] = list(new.blocks)
        self._table: IntArray | None = None

    @property
    def blocks(self) -> list[int]:
        """Device blocks in the order of the tokens; `add_blocks` appends."""
        return self._blocks

    @blocks.setter
    def blocks(self, blocks: list[int]) -> None:
        self._blocks = list(blocks)
        self._table = None

    def add_blocks(self, blocks: list[int]) -> None:
        """Append to the block table."""
        if blocks:
            self._blocks.extend(blocks)
            self._table = None

    @property
    def output_count(self) -> int:
        """Output tokens so far, those committed elsewhere included."""
        return len(self.token_ids) - self.prompt_length

    def block_table(self) -> IntArray:
        """The blocks as an array; not to be written to."""
        if self._table is None:
            self._table = np.asarray(self._blocks, np.int64)
        return self._table

    def commit(self, token_id: int, eos_token_ids: frozenset[int], max_model_len: int) -> FinishReason | None:
        """Append a sampled token; returns and remembers why the sequence ends with it, if it does."""
        self.token_ids.append(token_id)
        params = self.sampling
        is_eos = token_id in eos_token_ids and not params.ignore_eos
        if is_eos or token_id in params.stop_token_ids:
            self.finish = "stop"
        elif self.output_count >= params.max_tokens or len(self.token_ids) >= max_model_len:
            self.finish = "length"
        return self.finish
