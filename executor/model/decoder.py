"""The whole decoder: embedding, layers, final norm and output head."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from superinfer.executor.model.architecture import Architecture
from superinfer.executor.model.attention import Attention, AttentionScratch
from superinfer.executor.model.batch import TokenBatch
from superinfer.executor.model.kernels import as_numpy, kernel, widen
from superinfer.executor.model.linear import Linear, packing_works
from superinfer.executor.model.mlp import Mlp
from superinfer.executor.model.norm import add_norm, norm
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
        self, architecture: Architecture, weights: WeightSource, dtype: torch.dtype, max_model_len: int
    ) -> None:
        """Load all weights, converted to `dtype` (float32 or bfloat16). Raises ModelError."""
        self.architecture = architecture
        self.dtype = dtype
        self._epsilon = np.float32(architecture.norm_epsilon)
        builder = _LayerBuilder(architecture, weights, dtype)
        scratch = AttentionScratch(architecture, rotation_table(architecture, max_model_len), max_model_len, dtype)
        embedding = weights.get("model.embed_tokens.weight", (architecture.vocab_size, architecture.hidden_size))
        # The look-up table keeps a stored bfloat16: half the memory, and the same values.
        self._embedding = embedding if embedding.dtype == torch.bfloat16 else embedding.to(dtype)
        self._embedding_array = as_numpy(self._embedding)
        self._layers = [builder.layer(i, scratch) for i in range(architecture.layers)]
        self._final_norm = builder.norm("model.norm.weight")
        self._head = builder.head(embedding)

    def forward(self, batch: TokenBatch, pool: npt.NDArray[Any]) -> torch.Tensor:
        """Run one step; keys and values of all tokens go to `pool`. Returns float32 logits of the sample rows.

        pool is the numpy view of (block, layer, k/v, slot, kv_head, head_dim) in the compute type. The result is
        (sample rows, vocabulary), valid until the next call.
        """
        tokens, hidden = len(batch.token_ids), self.architecture.hidden_size
        residual = np.empty((tokens, hidden), np.float32)
        embed(batch.token_ids, self._embedding_array, residual)
        x = torch.empty(tokens, hidden, dtype=self.dtype)
        x_array = as_numpy(x)
        delta: npt.NDArray[Any] | None = None
        for attention_norm, attention, mlp_norm, mlp in self._layers:
            if delta is None:
                norm(residual, attention_norm, self._epsilon, x_array)
            else:
                add_norm(residual, delta, attention_norm, self._epsilon, x_array)
            attended = as_numpy(attention(x, batch, pool))
            add_norm(residual, attended, mlp_norm, self._epsilon, x_array)
            delta = as_numpy(mlp(x))
        rows = batch.sample_rows
        if len(rows) == 0:
            return torch.empty(0, self.architecture.vocab_size)
        last = torch.empty(len(rows), hidden, dtype=self.dtype)
        assert delta is not None
        add_norm(residual[rows], delta[rows], self._final_norm, self._epsilon, as_numpy(last))
        return self._head(last).float()


Layer = tuple[npt.NDArray[np.float32], Attention, npt.NDArray[np.float32], Mlp]


class _LayerBuilder:
    """Names of a Hugging Face checkpoint, put together into this decoder's fused layers."""

    def __init__(self, architecture: Architecture, weights: WeightSource, dtype: torch.dtype) -> None:
        self._shape = architecture
        self._weights = weights
        self._dtype = dtype
        self._packed = packing_works(dtype)

    def layer(self, index: int, scratch: AttentionScratch) -> Layer:
        """Layer `index` with its two norms."""
        shape, prefix = self._shape, f"model.layers.{index}."
        hidden, inner, width = shape.hidden_size, shape.intermediate_size, shape.heads * shape.head_dim
        kv_width = shape.kv_heads * shape.head_dim
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        qkv_parts = {
            attention + "q_proj": width,
            attention + "k_proj": kv_width,
            attention + "v_proj": kv_width,
        }
        gate_up_parts = {mlp + "gate_proj": inner, mlp + "up_proj": inner}
        return (
            self.norm(prefix + "input_layernorm.weight"),
            Attention(
                shape,
                index,
                self._fused(qkv_parts, hidden, shape.qkv_bias),
                self._fused({attention + "o_proj": hidden}, width, shape.output_bias),
                scratch,
            ),
            self.norm(prefix + "post_attention_layernorm.weight"),
            Mlp(
                self._fused(gate_up_parts, hidden, shape.mlp_bias),
                self._fused({mlp + "down_proj": hidden}, inner, shape.mlp_bias),
            ),
        )

    def norm(self, name: str) -> npt.NDArray[np.float32]:
        """A norm's weight in float32."""
        weight: npt.NDArray[np.float32] = self._weights.get(name, (self._shape.hidden_size,)).float().numpy()
        return weight

    def head(self, embedding: torch.Tensor) -> Linear:
        """The output head: its own weight, or the embedding where they are tied or none is stored."""
        name = "lm_head.weight"
        if self._shape.tied_head or not self._weights.has(name):
            weight = embedding
        else:
            weight = self._weights.get(name, (self._shape.vocab_size, self._shape.hidden_size))
        return Linear(weight, None, self._dtype, packed=self._packed, keep_output=True)

    def _fused(self, parts: dict[str, int], inputs: int, with_bias: bool) -> Linear:
        """One linear layer from several stored ones that read the same input; `parts` maps name to width."""
        weights = [self._weights.get(f"{name}.weight", (width, inputs)) for name, width in parts.items()]
        weight = torch.cat(weights) if len(weights) > 1 else weights[0]
        bias = None
        if with_bias:
            bias = torch.cat([self._weights.get(f"{name}.bias", (width,)) for name, width in parts.items()])
        return Linear(weight, bias, self._dtype, packed=self._packed)
