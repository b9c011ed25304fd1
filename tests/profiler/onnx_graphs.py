"""Small decoders as ONNX graphs, written node by node in the ways that exporters write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import onnx
from onnx import TensorProto, helper

from superinfer.profiler.architecture import architecture_from_config
from superinfer.profiler.decoder_shapes import ModelArchitecture

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
}
HEAD_DIM = 8
Style = Literal["softmax", "node", "grouped", "packed"]


def config_architecture(**extra: Any) -> ModelArchitecture:
    """The shapes that the graphs below are of."""
    return architecture_from_config({**CONFIG, **extra})


class GraphWriter:
    """Collects nodes and weights; weights have shapes and no values, as in a graph with external data."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def weight(self, name: str, *shape: int) -> str:
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="weights.bin")
        self.weights.append(tensor)
        return name

    def numbers(self, name: str, *values: int) -> str:
        self.weights.append(helper.make_tensor(name, TensorProto.INT64, [len(values)], values))
        return name

    def node(self, kind: str, inputs: list[str], output: str, *, domain: str = "", **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [output], domain=domain, **attributes))
        return output

    def linear(self, source: str, name: str, inputs: int, outputs: int, *, bias: bool = False) -> str:
        result = self.node("MatMul", [source, self.weight(f"{name}.weight", inputs, outputs)], name)
        return self.node("Add", [result, self.weight(f"{name}.bias", outputs)], f"{name}.biased") if bias else result


def write_decoder(
    path: Path,
    style: Style = "softmax",
    *,
    tied: bool = False,
    bias: bool = False,
    window: int = -1,
    has_shapes: bool = True,
) -> Path:
    """Write a decoder of CONFIG's shapes; without shapes neither its input nor how it splits heads has sizes."""
    graph, hidden = GraphWriter(window), CONFIG["hidden_size"]
    if has_shapes:
        graph.numbers("per_head", 0, 0, -1, HEAD_DIM)
    graph.numbers("flat", 0, 0, 32)
    value = graph.node("Gather", [graph.weight("embedding", CONFIG["vocab_size"], hidden), "tokens"], "x")
    for layer in range(CONFIG["num_hidden_layers"]):
        value = _layer(graph, value, f"l{layer}", style, bias=bias)
    value = graph.node("Mul", [value, graph.weight("norm", hidden)], "normed")
    if tied:
        table = graph.node("Transpose", ["embedding"], "head", perm=[1, 0])
    else:
        table = graph.weight("head", hidden, CONFIG["vocab_size"])
    graph.node("MatMul", [value, table], "logits")
    shape = ["batch", "sequence"] if has_shapes else None
    tokens = helper.make_tensor_value_info("tokens", TensorProto.INT64, shape)
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, None)
    split = [] if has_shapes else [helper.make_tensor_value_info("per_head", TensorProto.INT64, None)]
    body = helper.make_graph(graph.nodes, "decoder", [tokens, *split], [logits], graph.weights)
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    path.write_bytes(helper.make_model(body, opset_imports=opsets).SerializeToString())
    assert onnx.load(str(path), load_external_data=False).graph.node
    return path


def _layer(graph: GraphWriter, source: str, name: str, style: Style, *, bias: bool) -> str:
    hidden, wide = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    value = graph.node("Mul", [source, graph.weight(f"{name}.norm", hidden)], f"{name}.normed")
    attended = graph.linear(_attention(graph, value, name, style, bias=bias), f"{name}.o", 32, hidden)
    value = graph.node("Add", [source, attended], f"{name}.residual")
    inner = graph.node("Mul", [value, graph.weight(f"{name}.norm2", hidden)], f"{name}.normed2")
    gate = graph.node("Sigmoid", [graph.linear(inner, f"{name}.gate", hidden, wide)], f"{name}.gated")
    up = graph.node("Mul", [gate, graph.linear(inner, f"{name}.up", hidden, wide)], f"{name}.product")
    return graph.node("Add", [value, graph.linear(up, f"{name}.down", wide, hidden)], f"{name}.out")


def _attention(graph: GraphWriter, value: str, name: str, style: Style, *, bias: bool) -> str:
    hidden = CONFIG["hidden_size"]
    if style == "packed":
        packed = graph.linear(value, f"{name}.qkv", hidden, 64, bias=bias)
        return graph.node(
            "GroupQueryAttention",
            [packed, "", ""],
            f"{name}.attended",
            domain="com.microsoft",
            num_heads=4,
            kv_num_heads=2,
        )
    query, key, values = (
        graph.linear(value, f"{name}.{role}", hidden, width, bias=bias)
        for role, width in (("q", 32), ("k", 16), ("v", 16))
    )
    if style == "grouped":
        return graph.node(
            "GroupQueryAttention",
            [query, key, values],
            f"{name}.attended",
            domain="com.microsoft",
            num_heads=4,
            kv_num_heads=2,
            local_window_size=graph.window,
        )
    if style == "node":
        return graph.node("Attention", [query, key, values], f"{name}.attended", q_num_heads=4, kv_num_heads=2)
    heads = []
    for role, projected in (("q", query), ("k", key), ("v", values)):
        split = graph.node("Reshape", [projected, "per_head"], f"{name}.{role}.split")
        turned = graph.node("Transpose", [split], f"{name}.{role}.heads", perm=[0, 2, 1, 3])
        heads.append(turned)
    repeated = [heads[0]]
    for role, each in (("k", heads[1]), ("v", heads[2])):
        repeated.append(graph.node("Concat", [each, each], f"{name}.{role}.repeated", axis=1))
    keys = graph.node("Transpose", [repeated[1]], f"{name}.k.turned", perm=[0, 1, 3, 2])
    scores = graph.node("MatMul", [repeated[0], keys], f"{name}.scores")
    shares = graph.node("Softmax", [scores], f"{name}.shares", axis=-1)
    mixed = graph.node("MatMul", [shares, repeated[2]], f"{name}.mixed")
    back = graph.node("Transpose", [mixed], f"{name}.back", perm=[0, 2, 1, 3])
    return graph.node("Reshape", [back, "flat"], f"{name}.attended")
