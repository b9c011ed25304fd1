"""A decoder's shapes from its ONNX graph, checked against all the weights that the graph holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from superinfer.contracts.errors import ModelError
from superinfer.profiler.decoder_shapes import ModelArchitecture
from superinfer.profiler.onnx_attention import Attention, find_attention
from superinfer.profiler.onnx_graph import Linear, OnnxGraph, Weight, attribute, read_graph

# Numbers of TensorProto.DataType.
DTYPES = {1: "float32", 10: "float16", 16: "bfloat16", 17: "float8", 18: "float8", 19: "float8", 20: "float8"}
INT8_TYPES = (2, 3)
AGREEMENT = 0.01
"""How far the found shapes may be from the weights that the graph holds."""


@dataclass(frozen=True)
class OnnxDecoder:
    """What a graph tells: the decoder's shapes, the precision of its weights, and its own count of parameters."""

    architecture: ModelArchitecture
    dtype: str
    counted_parameters: int


def read_onnx_decoder(path: Path) -> OnnxDecoder:
    """Find the decoder in a graph. ModelError says what is missing, and what could be counted all the same."""
    graph = read_graph(path)
    linears = graph.linears()
    if not linears:
        raise ModelError(f"{path} has no product with a weight matrix; the graph of a decoder is needed")
    parts = _Parts(graph, linears)
    architecture = _architecture(parts)
    held = sum(linear.elements for linear in linears) + parts.expert_elements
    per_token = architecture.layers * architecture.attention_weights + architecture.head_weights
    described = per_token + architecture.mlp_weights(architecture.experts)
    if abs(described - held) > AGREEMENT * held:
        raise parts.refuse(
            f"its matrices hold {held:,} elements, a decoder of the shapes found "
            f"({architecture.layers} layers, hidden size {architecture.hidden_size}) {described:,}"
        )
    return OnnxDecoder(architecture, parts.dtype, parts.parameters)


class _Parts:
    """The parts of a decoder in a graph: embedding, head, attention by layer, and the other matrices."""

    def __init__(self, graph: OnnxGraph, linears: list[Linear]) -> None:
        self.graph, self.linears = graph, linears
        self.mixtures = [node for node in graph.nodes if node.op_type == "MoE"]
        self.attention = find_attention(graph, linears)

    def refuse(self, reason: str) -> ModelError:
        """An error that says what can be counted without the rest."""
        flops = 2 * (sum(linear.elements for linear in self.linears))
        size = {"float32": 4, "float8": 1, "int8": 1}.get(self.dtype, 2)
        return ModelError(
            f"{self.graph.source}: {reason}; still known: {self.parameters:,} parameters, "
            f"{self.parameters * size / 1e9:.3g} GB of {self.dtype} weights, {flops / 1e9:.4g} GFLOP per token "
            "without attention; for all figures give the model's config.json"
        )

    @property
    def dtype(self) -> str:
        """The precision of most weights."""
        counts: Counter[int] = Counter()
        for linear in self.linears:
            if linear.weight is not None:
                counts[linear.weight.element_type] += linear.elements
        most = counts.most_common(1)[0][0] if counts else 3
        return "int8" if most in INT8_TYPES else DTYPES.get(most, "bfloat16")

    @property
    def parameters(self) -> int:
        """Elements of all weights that a node uses: matrices, embeddings, experts, norms and biases."""
        weights: dict[str, int] = {}
        packed = 0
        for linear in self.linears:
            if linear.weight is None:
                packed += linear.elements
            else:
                weights[linear.weight.name] = linear.elements
        for node in self.graph.nodes:
            for name in node.input:
                weight = self.graph.weights.get(name)
                if weight is None or weight.element_type not in DTYPES:
                    continue
                is_table = node.op_type == "Gather" and name == node.input[0]
                if is_table or node.op_type == "MoE" or (len(weight.shape) == 1 and weight.elements > 1):
                    weights[name] = weight.elements
        return packed + sum(weights.values())

    @property
    def expert_elements(self) -> int:
        """Elements of the matrices of all experts."""
        return sum(
            self.graph.weights[name].elements
            for node in self.mixtures
            for name in node.input[2:]
            if name in self.graph.weights and len(self.graph.weights[name].shape) == 3
        )

    def embedding(self) -> Weight:
        """The largest table that tokens are looked up in."""
        tables = [
            resolved[0]
            for node in self.graph.nodes
            if node.op_type == "Gather" and (resolved := self.graph.weight_of(node.input[0])) is not None
        ]
        tables = [table for table in tables if len(table.shape) == 2]
        if not tables:
            raise self.refuse("no embedding table (Gather of a two-dimensional weight) was found")
        return max(tables, key=lambda table: table.elements)

    def head(self, vocab_size: int) -> Linear:
        """The last product, as wide as the vocabulary."""
        heads = [linear for linear in self.linears if linear.outputs == vocab_size]
        if not heads:
            raise self.refuse(f"no output head (a product that is {vocab_size:,} wide) was found")
        return heads[-1]

    def is_biased(self, linear: Linear) -> bool:
        """True where a vector is added to what the matrix gives."""
        if linear.node.op_type == "Gemm":
            return len(linear.node.input) > 2
        return any(
            node.op_type == "Add"
            and any(len(self.graph.weights[name].shape) == 1 for name in node.input if name in self.graph.weights)
            for node in self.graph.consumers.get(linear.node.output[0], ())
        )


def _architecture(parts: _Parts) -> ModelArchitecture:
    embedding = parts.embedding()
    vocab_size, hidden_size = embedding.shape
    head = parts.head(vocab_size)
    first = _one_kind(parts)
    assert first.query_width
    assert first.key_width
    assert first.head_dim
    attended = {index for each in parts.attention for index in each.projections}
    attended |= {id(each.output.node) for each in parts.attention if each.output is not None}
    mlp = [each for each in parts.linears if id(each.node) not in attended and each is not head]
    layers = len(parts.attention)
    mixture = _mixture(parts, hidden_size)
    if mixture is None:
        downs = [each for each in mlp if each.outputs == hidden_size]
        if not downs:
            raise parts.refuse("no matrix that leads back to the hidden size was found beside attention")
        mixture = {"intermediate_size": downs[0].inputs}
    by_node = {id(each.node): each for each in parts.linears}
    return ModelArchitecture(
        model_type="onnx",
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        layers=layers,
        heads=first.query_width // first.head_dim,
        kv_heads=first.key_width // first.head_dim,
        head_dim=first.head_dim,
        tied_embeddings=head.weight is embedding,
        qkv_bias=any(parts.is_biased(by_node[index]) for index in first.projections),
        output_bias=first.output is not None and parts.is_biased(first.output),
        mlp_bias=any(parts.is_biased(each) for each in mlp[:3]),
        sliding_window=first.window,
        **mixture,
    )


def _one_kind(parts: _Parts) -> Attention:
    """The attention of all layers; refuses where there is none, shapes are missing, or layers differ."""
    if not parts.attention:
        raise parts.refuse("no attention was found (an attention node, or products around a softmax)")
    kinds = {(each.query_width, each.key_width, each.head_dim, each.window) for each in parts.attention}
    first = parts.attention[0]
    if any(None in kind[:3] for kind in kinds):
        raise parts.refuse("the shapes of attention are neither in the graph nor can they be inferred from its inputs")
    if len(kinds) > 1:
        raise parts.refuse(f"its layers have {len(kinds)} kinds of attention; one is supported")
    if not first.projections:
        raise parts.refuse("the matrices that make queries, keys and values were not found")
    return first


def _mixture(parts: _Parts, hidden_size: int) -> dict[str, Any] | None:
    """Experts of a mixture node; None for a dense decoder."""
    if not parts.mixtures:
        return None
    node = parts.mixtures[0]
    down = parts.graph.weights.get(node.input[4]) if len(node.input) > 4 else None
    if down is None or len(down.shape) != 3:
        raise parts.refuse("the experts of its MoE nodes have no shapes")
    experts = down.shape[0]
    return {
        "experts": experts,
        "experts_per_token": attribute(node, "k", 1),
        "intermediate_size": down.elements // experts // hidden_size,
    }
