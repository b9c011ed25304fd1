"""An ONNX graph as an analysis reads it: who makes and uses each value, the shapes of weights and of what is inferred.

Weights stay on disk: only their names, shapes and types are read.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from superinfer.contracts.errors import ModelError, ResourceError

Shape = tuple[int | None, ...]

KEPT_ELEMENTS = 1024
"""Tensors up to this size keep their values, which shape inference may need; larger ones are weights."""

SAME_WEIGHT = {"Transpose", "Identity", "Cast", "DequantizeLinear"}
"""What stands between a weight and the product that it is used in."""

FIRST_INPUT_ONLY = {"CastLike", "Expand", "Pad", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Unsqueeze"}
"""Operations whose further inputs say how, not what."""

_VALUE_FIELDS = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")


@dataclass(frozen=True, eq=False)
class Weight:
    """An initializer: `element_type` is ONNX's number of its type."""

    name: str
    shape: tuple[int, ...]
    element_type: int

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Linear:
    """A product with a weight: `inputs` wide before it, `outputs` after."""

    node: Any
    inputs: int
    outputs: int
    weight: Weight | None

    @property
    def elements(self) -> int:
        """Elements of the matrix."""
        return self.inputs * self.outputs


@dataclass(eq=False)
class OnnxGraph:
    """The nodes in their order, with look-ups by value name."""

    source: str
    nodes: list[Any]
    outputs: list[str]
    weights: dict[str, Weight]
    shapes: dict[str, Shape]
    producers: dict[str, Any] = field(default_factory=dict)
    consumers: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        for node in self.nodes:
            for name in node.output:
                self.producers[name] = node
            for name in node.input:
                self.consumers[name].append(node)

    def weight_of(self, name: str) -> tuple[Weight, bool] | None:
        """The initializer that a value is, and whether it is transposed; None for what is computed."""
        transposed = False
        while name not in self.weights:
            node = self.producers.get(name)
            if node is None or node.op_type not in SAME_WEIGHT:
                return None
            transposed ^= node.op_type == "Transpose"
            name = node.input[0]
        return self.weights[name], transposed

    def linears(self) -> list[Linear]:
        """Every product with a two-dimensional weight, in the order of the graph."""
        found = []
        for node in self.nodes:
            if node.op_type == "MatMulNBits":
                found.append(Linear(node, attribute(node, "K", 0), attribute(node, "N", 0), None))
                continue
            if node.op_type not in ("MatMul", "Gemm"):
                continue
            resolved = self.weight_of(node.input[1])
            if resolved is None or len(resolved[0].shape) != 2:
                continue
            weight, transposed = resolved
            if node.op_type == "Gemm":
                transposed ^= bool(attribute(node, "transB", 0))
            inputs, outputs = reversed(weight.shape) if transposed else weight.shape
            found.append(Linear(node, inputs, outputs, weight))
        return found

    def before(self, names: Iterable[str], stop: set[int]) -> Iterator[tuple[str, Any]]:
        """Values upstream of `names` with the node that makes each, nearest first; nodes in `stop` are the last."""
        waiting, seen = list(names), set(names)
        while waiting:
            name = waiting.pop(0)
            node = self.producers.get(name)
            if node is None:
                continue
            yield name, node
            # A size tells nothing of where numbers come from.
            if id(node) in stop or node.op_type in ("Shape", "Size"):
                continue
            for earlier in node.input[:1] if node.op_type in FIRST_INPUT_ONLY else node.input:
                if earlier and earlier not in seen:
                    seen.add(earlier)
                    waiting.append(earlier)

    def after(self, name: str, through: set[str]) -> Iterator[Any]:
        """Nodes downstream of a value, nearest first; only what follows the operations in `through` is followed."""
        waiting, seen = [name], {name}
        while waiting:
            for node in self.consumers.get(waiting.pop(0), ()):
                yield node
                if node.op_type in through:
                    fresh = [output for output in node.output if output not in seen]
                    seen.update(fresh)
                    waiting += fresh


def attribute(node: Any, name: str, default: int) -> int:
    """A whole-number attribute of a node."""
    return next((int(each.i) for each in node.attribute if each.name == name), default)


def read_graph(path: Path) -> OnnxGraph:
    """Read, and infer shapes. ModelError where it is no ONNX model, ResourceError where `onnx` is not installed."""
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError:
        raise ResourceError("reading an ONNX graph needs the onnx package: pip install 'superinfer[onnx]'") from None
    try:
        model = onnx.load(str(path), load_external_data=False)
    except (DecodeError, OSError) as error:
        raise ModelError(f"{path} cannot be read as an ONNX model: {error}") from None
    if not model.graph.node:
        raise ModelError(f"{path} holds no graph; an ONNX model is needed")
    weights = {each.name: Weight(each.name, tuple(each.dims), each.data_type) for each in model.graph.initializer}
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) > KEPT_ELEMENTS:
            for values in _VALUE_FIELDS:
                tensor.ClearField(values)
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    try:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        raise ModelError(f"{path}: shapes cannot be inferred: {' '.join(str(error).split())[:300]}") from None
    graph = model.graph
    named = [*graph.input, *graph.value_info, *graph.output]
    shapes = {each.name: shape for each in named if (shape := _shape(each)) is not None}
    shapes |= {name: weight.shape for name, weight in weights.items()}
    return OnnxGraph(str(path), list(graph.node), [each.name for each in graph.output], weights, shapes)


def _shape(value: Any) -> Shape | None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(each.dim_value if each.HasField("dim_value") else None for each in tensor.shape.dim)
