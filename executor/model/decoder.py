"""The whole decoder: embedding, layers, final norm and output head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from superinfer.executor.model.architecture import Architecture
from superinfer.executor.model.attention import AttentionScratch
from superinfer.executor.model.batch import TokenBatch
from superinfer.executor.model.kernels import as_numpy, kernel, widen
from superinfer.executor.model.layer_builder import LayerBuilder
from superinfer.executor.model.norm import add_norm, norm
from superinfer.executor.model.packed_weights import PackedWeights
from superinfer.executor.model.precision import activation_dtype
from superinfer.executor.model.rope import rotation_table
from superinfer.executor.model.weights import WeightSource


@kernel
def embed(token_ids: Any, table: Any, out: Any) -> None:
    """out[t] = table[token_ids[t]] as float32."""
    for t in range(len(token_ids)):
        row = table[token_ids[t]]
        for d in range(out.shape[1]):
            out[t, d] = widen(row[d])


class Decoder:
    """A Llama-family decoder whose keys and values live in a paged pool that the caller owns."""

    def __init__(
        self,
        architecture: Architecture,
        weights: WeightSource,
        dtype: torch.dtype,
        max_model_len: int,
        kept: PackedWeights | None = None,
        weight_dtype: torch.dtype | None = None,
    ) -> None:
        """Load all weights, stored as `dtype` (float32 or bfloat16), as is the pool. Raises ModelError.

        `weight_dtype` int8 holds the matrices as that, the embedding's look-up table as before. `kept` are packed
        weights of an earlier start; whatever had to be packed is kept there for the next.
        """
        self.architecture = architecture
        self.dtype = activation_dtype(dtype)
        self._epsilon = np.float32(architecture.norm_epsilon)
        builder = LayerBuilder(architecture, weights, weight_dtype or dtype, self.dtype, kept)
        scratch = AttentionScratch(
            architecture, rotation_table(architecture.rope, max_model_len), max_model_len, self.dtype
        )
        embedding = weights.get("model.embed_tokens.weight", (architecture.vocab_size, architecture.hidden_size))
        # The look-up table keeps a stored bfloat16: half the memory, and the same values.
        self._embedding = embedding if embedding.dtype == torch.bfloat16 else embedding.to(dtype)
        self._embedding_array = as_numpy(self._embedding)
        self._layers = [builder.layer(i, scratch) for i in range(architecture.layers)]
        self._final_norm = builder.norm("model.norm.weight")
        self._head = builder.head(embedding)
        if kept is not None:
            kept.save()
        unread = 0 if architecture.tied_head else embedding.numel()
        self._head_share = embedding.numel() / max(architecture.parameters - unread, 1)

    def forward(
        self, batch: TokenBatch, pool: npt.NDArray[Any], moved: Callable[[float], None] | None = None
    ) -> torch.Tensor:
        """Run one step; keys and values of all tokens go to `pool`. Returns float32 logits of the sample rows.

        `moved` is told after each part of the step which share of its weights that part has read.

        pool is the numpy view of (block, layer, k/v, slot, kv_head, head_dim) in the stored type. The result is
        (sample rows, vocabulary), valid until the next call.
        """
        tokens, hidden = len(batch.token_ids), self.architecture.hidden_size
        residual = np.empty((tokens, hidden), np.float32)
        embed(batch.token_ids, self._embedding_array, residual)
        x = torch.empty(tokens, hidden, dtype=self.dtype)
        x_array = as_numpy(x)
        delta: npt.NDArray[Any] | None = None
        for layer in self._layers:
            if delta is None:
                norm(residual, layer.attention_norm, self._epsilon, x_array)
            else:
                add_norm(residual, delta, layer.attention_norm, self._epsilon, x_array)
            attended = as_numpy(layer.attention(x, batch, pool))
            add_norm(residual, attended, layer.mlp_norm, self._epsilon, x_array)
            delta = as_numpy(layer.mlp(x))
            if moved is not None:
                moved((1.0 - self._head_share) / len(self._layers))
        rows = batch.sample_rows
        if len(rows) == 0:
            return torch.empty(0, self.architecture.vocab_size)
        last = torch.empty(len(rows), hidden, dtype=self.dtype)
        assert delta is not None
        add_norm(residual[rows], delta[rows], self._final_norm, self._epsilon, as_numpy(last))
        # A head is a fifth of a small model: read at once it would be the longest burst of a step that is paced.
        of_head = None if moved is None else lambda share: moved(share * self._head_share)
        return self._head(last, of_head).float()
