"""Tensors of a Hugging Face checkpoint, put together into this decoder's fused layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from superinfer.executor.model.architecture import Architecture
from superinfer.executor.model.attention import Attention, AttentionScratch, HeadNorms
from superinfer.executor.model.expert_shape import ExpertShape
from superinfer.executor.model.experts import Experts, SharedExpert
from superinfer.executor.model.int8_panels import int8_panels_size, pack_int8_panels
from superinfer.executor.model.linear import Linear, packing_works
from superinfer.executor.model.mlp import Mlp
from superinfer.executor.model.packed_weights import PackedWeights
from superinfer.executor.model.panel_tiles import tiles_fill_vectors
from superinfer.executor.model.panels import padded_columns, supports
from superinfer.executor.model.weights import WeightSource


@dataclass(slots=True)
class Layer:
    """One decoder layer: attention and feed-forward, each after its norm's weight."""

    attention_norm: npt.NDArray[np.float32]
    attention: Attention
    mlp_norm: npt.NDArray[np.float32]
    mlp: Mlp | Experts


class LayerBuilder:
    """Builds layers; every method raises ModelError for weights that are missing or do not fit."""

    def __init__(
        self,
        architecture: Architecture,
        weights: WeightSource,
        stored: torch.dtype,
        computed: torch.dtype,
        kept: PackedWeights | None = None,
    ) -> None:
        """Matrices are rounded to `stored` where that is narrower, and multiplied in `computed`: int8 in float32.

        `kept` holds the packed weights of earlier starts; what it lacks is packed and added.
        """
        self._shape = architecture
        self._weights = weights
        self._stored = stored
        self._dtype = computed
        self._packed = packing_works(computed)
        panels_only = stored == torch.int8 or tiles_fill_vectors()
        self._kept = kept if computed == torch.float32 and panels_only else None

    def layer(self, index: int, scratch: AttentionScratch) -> Layer:
        """Layer `index` with its two norms."""
        shape, prefix = self._shape, f"model.layers.{index}."
        experts = shape.experts
        return Layer(
            attention_norm=self.norm(prefix + "input_layernorm.weight"),
            attention=self._attention(index, prefix + "self_attn.", scratch),
            mlp_norm=self.norm(prefix + "post_attention_layernorm.weight"),
            mlp=(
                self._experts(f"{prefix}{experts.prefix}.", experts)
                if experts is not None and index in experts.layers
                else self._dense(prefix + "mlp.")
            ),
        )

    def norm(self, name: str, size: int | None = None) -> npt.NDArray[np.float32]:
        """A norm's weight in float32, of the hidden size unless another is given."""
        weight: npt.NDArray[np.float32] = self._weights.get(name, (size or self._shape.hidden_size,)).float().numpy()
        return weight

    def head(self, embedding: torch.Tensor) -> Linear:
        """The output head: its own weight, or the embedding where they are tied or none is stored."""
        name = "lm_head.weight"
        if self._shape.tied_head or not self._weights.has(name):
            weight = embedding
        else:
            weight = self._weights.get(name, (self._shape.vocab_size, self._shape.hidden_size))
        return self._make_linear("head", [weight], None, keep_output=True)

    def _rounded(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.to(torch.bfloat16) if self._stored == torch.bfloat16 else weight

    def _attention(self, index: int, prefix: str, scratch: AttentionScratch) -> Attention:
        shape = self._shape
        hidden, width, kv_width = shape.hidden_size, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        qkv = {"q_proj": width, "k_proj": kv_width, "v_proj": kv_width}
        if shape.fused:
            qkv = {"qkv_proj": shape.qkv_size}
        norms = None
        if shape.query_key_norm:
            norms = HeadNorms(
                self.norm(prefix + "q_norm.weight", shape.head_dim),
                self.norm(prefix + "k_norm.weight", shape.head_dim),
                np.float32(shape.norm_epsilon),
            )
        return Attention(
            shape,
            index,
            self._linear(prefix, qkv, hidden, shape.qkv_bias),
            self._linear(prefix, {"o_proj": hidden}, width, shape.output_bias),
            norms,
            scratch,
        )

    def _dense(self, prefix: str) -> Mlp:
        shape = self._shape
        if not shape.fused:
            return self._gated(prefix, shape.intermediate_size, shape.mlp_bias)
        return Mlp(
            self._linear(prefix, {"gate_up_proj": 2 * shape.intermediate_size}, shape.hidden_size, shape.mlp_bias),
            self._linear(prefix, {"down_proj": shape.hidden_size}, shape.intermediate_size, shape.mlp_bias),
        )

    def _gated(
        self, prefix: str, inner: int, bias: bool, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    ) -> Mlp:
        gate, up, down = names
        hidden = self._shape.hidden_size
        return Mlp(
            self._linear(prefix, {gate: inner, up: inner}, hidden, bias),
            self._linear(prefix, {down: hidden}, inner, bias),
        )

    def _experts(self, prefix: str, shape: ExpertShape) -> Experts:
        hidden = self._shape.hidden_size
        experts = [
            self._gated(f"{prefix}experts.{expert}.", shape.intermediate_size, False, shape.names)
            for expert in range(shape.count)
        ]
        shared = None
        if shape.shared_size:
            gate = self._weights.get(prefix + "shared_expert_gate.weight", (1, hidden)).float().numpy()[0]
            shared = SharedExpert(self._gated(prefix + "shared_expert.", shape.shared_size, False), gate)
        # Which expert a token takes is decided by small differences, and the router is small: it is never int8.
        router = self._linear(prefix, {"gate": shape.count}, hidden, False, exact=True)
        return Experts(router, experts, shape.per_token, shape.normalised, shared)

    def _linear(
        self, prefix: str, parts: dict[str, int], inputs: int, with_bias: bool, *, exact: bool = False
    ) -> Linear:
        """One linear layer from several stored ones that read the same input; `parts` maps name to width."""
        weights = [self._weights.get(f"{prefix}{name}.weight", (width, inputs)) for name, width in parts.items()]
        bias = None
        if with_bias:
            bias = torch.cat([self._weights.get(f"{prefix}{name}.bias", (width,)) for name, width in parts.items()])
        return self._make_linear(prefix + "+".join(parts), weights, bias, exact=exact)

    def _make_linear(
        self,
        name: str,
        weights: list[torch.Tensor],
        bias: torch.Tensor | None,
        *,
        keep_output: bool = False,
        exact: bool = False,
    ) -> Linear:
        """A layer of these weights one below the other, packed before now if that was kept under `name`.

        `exact`: never int8.
        """
        rows, inputs = sum(len(weight) for weight in weights), weights[0].shape[1]
        if self._stored == torch.int8 and not exact and supports(inputs):
            return self._make_int8(name, weights, bias, keep_output=keep_output)
        narrow = self._stored == torch.bfloat16 or all(weight.dtype == torch.bfloat16 for weight in weights)
        held = torch.bfloat16 if narrow else torch.float32
        panels = None
        if self._kept is not None and supports(inputs):
            panels = self._kept.get(name, padded_columns(rows) * inputs, held)
        if panels is not None:
            weight = torch.empty(rows, inputs, dtype=held, device="meta")
        else:
            weight = self._rounded(torch.cat(weights) if len(weights) > 1 else weights[0])
        linear = Linear(weight, bias, self._dtype, packed=self._packed, keep_output=keep_output, panels=panels)
        if self._kept is not None and panels is None and linear.panels is not None:
            self._kept.add(name, linear.panels)
        return linear

    def _make_int8(
        self, name: str, weights: list[torch.Tensor], bias: torch.Tensor | None, *, keep_output: bool
    ) -> Linear:
        rows, inputs = sum(len(weight) for weight in weights), weights[0].shape[1]
        panels = None if self._kept is None else self._kept.get(name, int8_panels_size(rows, inputs), torch.int8)
        if panels is None:
            panels = pack_int8_panels(torch.cat(weights) if len(weights) > 1 else weights[0])
            if self._kept is not None:
                self._kept.add(name, panels)
        shape = torch.empty(rows, inputs, dtype=torch.int8, device="meta")
        return Linear(shape, bias, self._dtype, packed=self._packed, keep_output=keep_output, panels=panels)
