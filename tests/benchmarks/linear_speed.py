"""Time of all linear layers of a model in one step, by token count: our panels, ours of int8, oneDNN, plain torch.

    python tests/benchmarks/linear_speed.py [--model DIR or name] [--tokens 1 8 32] [--head] [--json]

Random bfloat16 weights of the model's shapes, computed in float32 on one thread. Figures are medians of the thread's
own CPU time over repeats that alternate between them, so that a busy machine slows all alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from superinfer.executor.model.architecture import Architecture, load_architecture
from superinfer.executor.model.int8_panels import pack_int8_panels
from superinfer.executor.model.linear import Linear, packing_works
from superinfer.executor.model.panels import padded_columns
from superinfer.executor.models.catalog import resolve_model

Step = Callable[[torch.Tensor], torch.Tensor]


def layer_shapes(shape: Architecture) -> list[tuple[int, int]]:
    """(inputs, outputs) of a layer's fused linear layers."""
    width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    hidden, inner = shape.hidden_size, shape.intermediate_size
    return [(hidden, width + 2 * kv_width), (width, hidden), (hidden, 2 * inner), (inner, hidden)]


def onednn(weight: torch.Tensor) -> Step:
    """The float32 product of a weight that oneDNN has packed."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.float(), 32)
    return lambda x: torch.ops.mkldnn._linear_pointwise.default(x, packed, None, "none", [], "")  # type: ignore[no-any-return]


def plain_torch(weight: torch.Tensor) -> Step:
    """torch's own float32 product."""
    full = weight.float()
    return lambda x: F.linear(x, full)


def ours(weight: torch.Tensor) -> Step:
    """The layer that the engine uses."""
    return Linear(weight, None, torch.float32, packed=packing_works(torch.float32))


def int8(weight: torch.Tensor) -> Step:
    """The layer that the engine uses with weights of eight bits."""
    return Linear(weight, None, torch.float32, packed=False, panels=pack_int8_panels(weight))


def cpu_seconds(layers: list[Step], inputs: list[torch.Tensor]) -> float:
    """The thread's CPU time for one pass over all layers."""
    started = time.thread_time()
    for layer, x in zip(layers, inputs, strict=True):
        layer(x)
    return time.thread_time() - started


def main() -> None:
    """Measure and print; data to stdout, progress to stderr."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 2, 4, 8, 12, 16, 24, 36, 56, 127, 256])
    parser.add_argument("--head", action="store_true", help="with the output head, for every token")
    every = ["panels", "int8", "onednn", "torch"]
    parser.add_argument("--only", nargs="+", choices=every, default=every)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    torch.set_num_threads(1)
    shape = load_architecture(resolve_model(options.model).directory)
    shapes = layer_shapes(shape) * shape.layers
    if options.head:
        shapes.append((shape.hidden_size, shape.vocab_size))
    makers = {"panels": ours, "int8": int8, "onednn": onednn, "torch": plain_torch}
    built: dict[str, list[Step]] = {name: [] for name in options.only}
    generator = torch.Generator().manual_seed(0)
    for inputs, outputs in shapes:
        weight = torch.randn(outputs, inputs, generator=generator).bfloat16()
        for name in options.only:
            built[name].append(makers[name](weight))
    rows: list[dict[str, Any]] = []
    with torch.inference_mode():
        for tokens in options.tokens:
            print(f"{tokens} tokens …", file=sys.stderr)
            batches = {size: torch.randn(tokens, size) for size, _ in shapes}
            x = [batches[size] for size, _ in shapes]
            times: dict[str, list[float]] = {name: [] for name in built}
            for _ in range(options.repeats):
                for name, layers in built.items():
                    times[name].append(cpu_seconds(layers, x))
            flops = 2 * tokens * sum(inputs * outputs for inputs, outputs in shapes)
            medians = {name: statistics.median(values) for name, values in times.items()}
            rows.append(
                {
                    "tokens": tokens,
                    "ms": {name: 1e3 * seconds for name, seconds in medians.items()},
                    "gflop_per_s": {name: flops / seconds / 1e9 for name, seconds in medians.items()},
                }
            )
    if options.json:
        bytes_held = sum(2 * inputs * padded_columns(outputs) for inputs, outputs in shapes)
        settings = {name: value for name, value in vars(options).items() if name != "json"}
        print(json.dumps({"settings": settings, "panel_bytes": bytes_held, "rows": rows}))
        return
    print(f"{'tokens':>6}" + "".join(f"{name + ' ms':>12}{'GFLOP/s':>9}" for name in built))
    for row in rows:
        figures = "".join(f"{row['ms'][name]:>12.1f}{row['gflop_per_s'][name]:>9.1f}" for name in built)
        print(f"{row['tokens']:>6}{figures}")


if __name__ == "__main__":
    main()
