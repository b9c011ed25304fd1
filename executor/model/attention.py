"""One attention layer: fused projections, rotation, cache write, then decodes and prefill chunks each their way."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from superinfer.executor.model.architecture import Architecture
from superinfer.executor.model.batch import TokenBatch
from superinfer.executor.model.decode_attention import decode_attention
from superinfer.executor.model.kernels import LOG2_E, as_numpy
from superinfer.executor.model.linear import Linear
from superinfer.executor.model.panel_prefill import PrefillScratch, panel_prefill, supports
from superinfer.executor.model.panel_tiles import tiles_fill_vectors
from superinfer.executor.model.prefill_attention import prefill_attention
from superinfer.executor.model.rope import rotate_and_store

UNLIMITED = 2**40
"""The window of layers that see all tokens."""


@dataclass(slots=True)
class HeadNorms:
    """Norms over each head's query and key; weights (head_dim,). A negative epsilon stands for none."""

    query: npt.NDArray[np.float32]
    key: npt.NDArray[np.float32]
    epsilon: np.float32


class AttentionScratch:
    """Buffers that all layers share: the rotation table and the attention kernels' work space."""

    def __init__(
        self, architecture: Architecture, rotation: npt.NDArray[np.float32], max_tokens: int, dtype: torch.dtype
    ) -> None:
        self.prefill: PrefillScratch | None = None
        if dtype == torch.float32 and tiles_fill_vectors() and supports(architecture.head_dim):
            self.prefill = PrefillScratch(max_tokens, architecture.head_dim)
        self.rotation = rotation
        self.scale = np.float32(LOG2_E / math.sqrt(architecture.head_dim))
        # A few cache lines off a multiple of the page, where the rows of all heads would fall into one cache set.
        columns = -(-(max_tokens + 1) // 1024) * 1024 + 48
        self.scores = np.zeros((architecture.heads, columns), np.float32)
        self.sums = np.zeros((architecture.heads, architecture.head_dim), np.float32)


class Attention:
    """Grouped-query attention over the paged cache."""

    def __init__(
        self,
        architecture: Architecture,
        layer: int,
        qkv: Linear,
        output: Linear,
        norms: HeadNorms | None,
        scratch: AttentionScratch,
    ) -> None:
        self._heads, self._head_dim = architecture.heads, architecture.head_dim
        self._layer = layer
        self._window = architecture.windows[layer] or UNLIMITED
        ones = np.ones(architecture.head_dim, np.float32)
        self._norms = norms or HeadNorms(ones, ones, np.float32(-1.0))
        self._qkv = qkv
        self._output = output
        self._scratch = scratch

    def __call__(self, x: torch.Tensor, batch: TokenBatch, pool: npt.NDArray[Any]) -> torch.Tensor:
        """x (tokens, hidden) → (tokens, hidden); writes the tokens' keys and values to `pool`."""
        scratch = self._scratch
        tokens = x.shape[0]
        qkv = self._qkv(x)
        queries = torch.empty(tokens, self._heads, self._head_dim)
        queries_array = queries.numpy()
        rotate_and_store(
            as_numpy(qkv), batch.positions, batch.slots, scratch.rotation, pool, self._layer, scratch.scale,
            queries_array, self._norms.query, self._norms.key, self._norms.epsilon,
        )  # fmt: skip
        mixed = torch.empty(tokens, self._heads * self._head_dim, dtype=x.dtype)
        if len(batch.context_lengths):
            decode_attention(
                queries_array, pool, self._layer, batch.block_tables, batch.context_lengths, self._window,
                scratch.scores, scratch.sums, as_numpy(mixed),
            )  # fmt: skip
        for chunk in batch.chunks:
            if scratch.prefill is None:
                prefill_attention(queries, pool, self._layer, chunk, self._window, mixed)
            else:
                panel_prefill(
                    queries_array, pool, self._layer, chunk, self._window, mixed.numpy(), scratch.prefill
                )  # fmt: skip
        return self._output(mixed)
