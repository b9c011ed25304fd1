"""A latency model of a (model, device, tensor-parallel degree) that nobody has measured: data sheet and roofline.

A step's linear layers take the longer of arithmetic and weight reads, each at the share of the published peak that
`Efficiency` names, plus two all-reduces a layer. The result is the `LatencyModel` that a measured profile gives, so
that scheduler and simulator cannot tell them apart; its figures are predictions and no more.

Tensor parallelism splits weights, arithmetic and KV heads evenly. A ring all-reduce of b bytes sends 2·(t−1)/t·b over
each device's link (Patarasuk and Yuan 2009), after a fixed latency.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from superinfer.contracts.errors import UsageError
from superinfer.profiler.architecture import ModelArchitecture
from superinfer.profiler.data_sheet import DataSheet
from superinfer.profiler.latency_model import LatencyModel
from superinfer.profiler.static import (
    BYTES_PER_ELEMENT,
    activation_bytes_per_element,
    kv_bytes_per_token,
    step_read_bytes,
)

TOKEN_COUNTS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192)
"""Where the linear layers are predicted; between, and beyond the last, the model interpolates."""

Z90, Z99 = 1.2816, 2.3263
"""Standard normal quantiles at 0.9 and 0.99."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of published peaks that serving engines reach, and fixed costs of a step.

    Assumptions, stated so that they can be changed. `prefill_flops`: large bf16 matrix products reach 0.5–0.65 of the
    dense peak under sustained power limits. `attention_flops`: fused attention kernels 0.35–0.5. `bandwidth`: weight
    and KV reads 0.7–0.85. `link`: ring all-reduce 0.7–0.8 of the link's rate per direction. `all_reduce_latency_s`: a
    small one, within a node. `layer_launch_s`: gaps between a layer's kernels under CUDA graphs. `step_launch_s`:
    host side of a step and sampling. `chunk_s`: what each further prompt in a step costs a variable-length attention
    kernel. `residual_sigma`: sigma of the log-normal noise on step times. `memory_share`: part of the memory that
    weights and KV may fill; the rest is activations and the runtime's own.
    """

    prefill_flops: float = 0.55
    attention_flops: float = 0.40
    bandwidth: float = 0.80
    link: float = 0.75
    all_reduce_latency_s: float = 10e-6
    layer_launch_s: float = 8e-6
    step_launch_s: float = 1e-3
    chunk_s: float = 50e-6
    residual_sigma: float = 0.05
    memory_share: float = 0.90


def roofline_model(
    architecture: ModelArchitecture,
    sheet: DataSheet,
    *,
    dtype: str = "bfloat16",
    tensor_parallel: int = 1,
    link_gb_per_s: float | None = None,
    efficiency: Efficiency | None = None,
) -> LatencyModel:
    """The predicted latency model of `tensor_parallel` devices that serve one copy of the model together.

    `link_gb_per_s` is each device's rate to the others, per direction; by default that of the data sheet, or the host
    link where devices have no other. Raises UsageError where the heads cannot be divided among the devices.
    """
    a, e = architecture, efficiency or Efficiency()
    if a.heads % tensor_parallel:
        raise UsageError(f"tensor_parallel {tensor_parallel}: must divide the model's {a.heads} attention heads")
    link = (link_gb_per_s or sheet.device_link_gb_per_s or sheet.host_link_gb_per_s) * 1e9 * e.link
    peak = sheet.peak_tflops(dtype) * 1e12 * tensor_parallel
    reads = sheet.bandwidth_gb_per_s * 1e9 * tensor_parallel * e.bandwidth
    kv_reads = reads * min(a.divisible_kv_heads, tensor_parallel) / tensor_parallel
    kv_bytes = kv_bytes_per_token(a, dtype)
    activation_bytes = a.hidden_size * activation_bytes_per_element(dtype)
    all_reduces = 2 * a.layers if tensor_parallel > 1 else 0
    sent_share = 2.0 * (tensor_parallel - 1) / tensor_parallel

    def linear_s(tokens: int) -> float:
        arithmetic_s = 2.0 * tokens * a.linear_weights_per_token / (peak * e.prefill_flops)
        weights_s = step_read_bytes(a, dtype, tokens=tokens, context=0) / reads
        all_reduce_s = e.all_reduce_latency_s + sent_share * tokens * activation_bytes / link
        return max(arithmetic_s, weights_s) + all_reduces * all_reduce_s

    sigma = e.residual_sigma
    return LatencyModel(
        launch_s=e.step_launch_s + a.layers * e.layer_launch_s,
        linear_points=[(float(tokens), linear_s(tokens)) for tokens in TOKEN_COUNTS],
        decode_context_s=kv_bytes / kv_reads,
        decode_s=kv_bytes / kv_reads,
        prefill_pair_s=a.layers * a.prefill_pair_flops / (peak * e.attention_flops),
        chunk_s=e.chunk_s,
        row_s=2.0 * a.head_weights / (peak * e.prefill_flops),
        residual_quantiles={0.5: 1.0, 0.9: math.exp(Z90 * sigma), 0.99: math.exp(Z99 * sigma)},
    )


def kv_token_capacity(
    architecture: ModelArchitecture,
    sheet: DataSheet,
    *,
    dtype: str = "bfloat16",
    tensor_parallel: int = 1,
    efficiency: Efficiency | None = None,
) -> int:
    """Tokens whose KV fits beside the weights; UsageError where the weights alone do not fit."""
    e = efficiency or Efficiency()
    usable = sheet.memory_gb * 1e9 * tensor_parallel * e.memory_share
    weights = architecture.parameters * BYTES_PER_ELEMENT[dtype]
    # Devices beyond the number of key/value heads hold copies of them.
    copies = max(tensor_parallel / architecture.divisible_kv_heads, 1.0)
    tokens = int((usable - weights) / (kv_bytes_per_token(architecture, dtype) * copies))
    if tokens < 1:
        raise UsageError(
            f"tensor_parallel {tensor_parallel}: weights of {weights / 1e9:.0f} GB do not fit into the "
            f"{usable / 1e9:.0f} GB that {tensor_parallel} device(s) of {sheet.memory_gb:g} GB leave; "
            "give more devices to each copy"
        )
    return tokens
