"""Attention found in an ONNX graph: as one node, or as the products around a softmax."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from superinfer.profiler.onnx_graph import Linear, OnnxGraph, Shape, attribute

FUSED = {"Attention", "GroupQueryAttention", "MultiHeadAttention"}
SCORES = {"Add", "Mul", "Div", "Sub", "Where", "Cast", "Reshape", "Clip", "Tanh", "Identity"}
"""What may stand between the product of queries and keys and its softmax."""

PROBABILITIES = {"Cast", "Where", "IsNaN", "Dropout", "Reshape", "Identity", "Mul"}
"""What may stand between the softmax and its product with the values."""

RESHAPES = {"Transpose", "Reshape", "Cast", "Identity", "Squeeze", "Unsqueeze", "Mul"}
"""What may stand between attention and its output matrix."""


@dataclass(frozen=True, eq=False)
class Attention:
    """One layer's attention: widths of all heads together, and the matrices around it.

    A width or `head_dim` is None where no shape tells it. `window` is how many keys a query sees, None where all.
    """

    query_width: int | None
    key_width: int | None
    head_dim: int | None
    projections: frozenset[int]
    output: Linear | None
    window: int | None


@dataclass(frozen=True, eq=False)
class _Operands:
    node: Any
    query: str
    key: str
    value: str
    result: str


def find_attention(graph: OnnxGraph, linears: list[Linear]) -> list[Attention]:
    """The attention of every layer, in the order of the graph."""
    by_node = {id(linear.node): linear for linear in linears}
    return [_describe(graph, operands, by_node) for operands in _operands(graph)]


def _operands(graph: OnnxGraph) -> Iterator[_Operands]:
    for node in graph.nodes:
        if node.op_type in FUSED and len(node.input) >= 3:
            # Where keys and values come packed with the queries, their names are empty.
            query, key, value = node.input[0], node.input[1] or node.input[0], node.input[2] or node.input[0]
            yield _Operands(node, query, key, value, node.output[0])
        elif node.op_type == "Softmax":
            scores = _score_product(graph, node)
            values = _value_product(graph, node)
            if scores is not None and values is not None:
                yield _Operands(node, scores.input[0], scores.input[1], values.input[1], values.output[0])


def _score_product(graph: OnnxGraph, softmax: Any) -> Any:
    """The product of two computed values before a softmax, or None: then it belongs to a router or a sampler."""
    waiting = [softmax.input[0]]
    while waiting:
        node = graph.producers.get(waiting.pop(0))
        if node is None:
            continue
        if node.op_type == "MatMul":
            if graph.weight_of(node.input[0]) is None and graph.weight_of(node.input[1]) is None:
                return node
        elif node.op_type in SCORES:
            waiting += node.input
    return None


def _value_product(graph: OnnxGraph, softmax: Any) -> Any:
    for node in graph.after(softmax.output[0], PROBABILITIES):
        if node.op_type == "MatMul" and graph.weight_of(node.input[1]) is None:
            return node
    return None


def _describe(graph: OnnxGraph, operands: _Operands, by_node: dict[int, Linear]) -> Attention:
    stop = set(by_node)
    found = {
        role: [by_node[id(node)] for _, node in graph.before([name], stop) if id(node) in stop]
        for role, name in (("query", operands.query), ("key", operands.key), ("value", operands.value))
    }
    is_packed = _identities(found["query"]) == _identities(found["key"])
    heads = attribute(operands.node, "num_heads", 0) or attribute(operands.node, "q_num_heads", 0)
    kv_heads = attribute(operands.node, "kv_num_heads", 0)
    if is_packed:
        query_width, key_width = (_width_after(graph, name, stop) for name in (operands.query, operands.key))
        if heads and operands.query == operands.key and found["query"]:
            packed_dim = found["query"][0].outputs // (heads + 2 * (kv_heads or heads))
            query_width, key_width = heads * packed_dim, (kv_heads or heads) * packed_dim
    else:
        query_width, key_width = (sum(each.outputs for each in found[role]) or None for role in ("query", "key"))
    head_dim = query_width // heads if heads and query_width else _last(graph.shapes.get(operands.query))
    if head_dim is None:
        head_dim = next(
            (
                shape[-1]
                for name, _ in graph.before([operands.query], stop)
                if (shape := graph.shapes.get(name)) and len(shape) == 4 and shape[-1]
            ),
            None,
        )
    following = (by_node.get(id(node)) for node in graph.after(operands.result, RESHAPES))
    window = attribute(operands.node, "local_window_size", -1)
    return Attention(
        query_width=query_width,
        key_width=key_width,
        head_dim=head_dim,
        projections=frozenset().union(*(_identities(each) for each in found.values())),
        output=next((linear for linear in following if linear is not None), None),
        window=window if window > 0 else None,
    )


def _identities(linears: list[Linear]) -> frozenset[int]:
    return frozenset(id(each.node) for each in linears)


def _width_after(graph: OnnxGraph, name: str, stop: set[int]) -> int | None:
    """The width of what is cut out of a packed projection for this operand."""
    for value, node in graph.before([name], stop):
        if any(id(graph.producers.get(source)) in stop for source in node.input if source in graph.producers):
            shape = graph.shapes.get(value)
            if shape is None:
                return None
            if len(shape) <= 3:
                return shape[-1]
            return shape[-1] * shape[-2] if shape[-1] and shape[-2] else None
    return None


def _last(shape: Shape | None) -> int | None:
    return shape[-1] if shape and len(shape) == 4 else None
