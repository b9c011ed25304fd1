"""What a model would do on a device that nobody has measured: times, rates and the limit of each phase, by roofline."""

from __future__ import annotations

from typing import Literal

import msgspec

from superinfer.contracts.errors import UsageError
from superinfer.profiler.data_sheet import DataSheet
from superinfer.profiler.decoder_shapes import ModelArchitecture
from superinfer.profiler.latency_model import StepShape
from superinfer.profiler.roofline import Efficiency, kv_token_capacity, roofline_model
from superinfer.profiler.static import (
    BYTES_PER_ELEMENT,
    activation_bytes_per_element,
    kv_bytes_per_token,
    step_flops,
    step_read_bytes,
)

Limit = Literal["arithmetic", "memory", "link"]

PREFILL_TOKENS = (512, 2048, 8192)
DECODE_BATCHES = (1, 8, 32, 128)


class PhaseEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """One step: a prefill of `tokens`, or one token for each of `tokens` sequences of `context` tokens.

    `seconds` includes assumed efficiencies and fixed costs; `least_seconds` is what the published peaks allow.
    `fits` is False where weights and the sequences' KV cache need more memory than there is.
    """

    phase: Literal["prefill", "decode"]
    tokens: int
    context: int
    seconds: float
    least_seconds: float
    tokens_per_s: float
    tflops: float
    flops_per_byte: float
    limit: Limit
    fits: bool


class DeviceEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """A model on `tensor_parallel` devices of one type together; predicted, not measured.

    `kv_tokens` is how many tokens of KV cache fit beside the weights, 0 where the weights alone do not fit.
    """

    device: str
    source: str
    dtype: str
    tensor_parallel: int
    peak_tflops: float
    bandwidth_gb_per_s: float
    weight_gb: float
    memory_gb: float
    kv_tokens: int
    phases: list[PhaseEstimate]


def estimate(
    architecture: ModelArchitecture,
    sheet: DataSheet,
    *,
    device: str,
    dtype: str,
    tensor_parallel: int = 1,
    decode_context: int = 512,
    efficiency: Efficiency | None = None,
) -> DeviceEstimate:
    """Predict prefills and decode steps at several sizes. Raises UsageError where the heads cannot be divided."""
    a, e = architecture, efficiency or Efficiency()
    model = roofline_model(a, sheet, dtype=dtype, tensor_parallel=tensor_parallel, efficiency=e)
    try:
        kv_tokens = kv_token_capacity(a, sheet, dtype=dtype, tensor_parallel=tensor_parallel, efficiency=e)
    except UsageError:
        kv_tokens = 0
    longest = a.max_position or max(PREFILL_TOKENS)
    shapes: list[tuple[Literal["prefill", "decode"], int, int, StepShape]] = []
    for tokens in PREFILL_TOKENS:
        if tokens <= longest:
            shape = StepShape()
            shape.add_prefill(0, tokens, samples=True)
            shapes.append(("prefill", tokens, 0, shape))
    context = min(decode_context, longest - 1)
    for batch in DECODE_BATCHES:
        seen = round(a.visible_keys(context))
        shapes.append(
            ("decode", batch, context, StepShape(tokens=batch, decodes=batch, decode_context=batch * seen, rows=batch))
        )
    phases = []
    for phase, tokens, context, shape in shapes:
        seconds = model.step_s(shape)
        read = step_read_bytes(a, dtype, tokens=tokens, context=shape.decode_context)
        read += shape.tokens * kv_bytes_per_token(a, dtype)
        flops = step_flops(a, shape)
        least = _least_seconds(a, sheet, dtype, tensor_parallel, shape.tokens, flops, read)
        limit = max(least, key=lambda name: least[name])
        kept = tokens if phase == "prefill" else round(tokens * a.visible_keys(context + 1))
        phases.append(
            PhaseEstimate(
                phase=phase,
                tokens=tokens,
                context=context,
                seconds=seconds,
                least_seconds=least[limit],
                tokens_per_s=tokens / seconds,
                tflops=flops / seconds / 1e12,
                flops_per_byte=flops / read,
                limit=limit,
                fits=kept <= kv_tokens,
            )
        )
    return DeviceEstimate(
        device=device,
        source=sheet.source,
        dtype=dtype,
        tensor_parallel=tensor_parallel,
        peak_tflops=sheet.peak_tflops(dtype) * tensor_parallel,
        bandwidth_gb_per_s=sheet.bandwidth_gb_per_s * tensor_parallel,
        weight_gb=a.parameters * BYTES_PER_ELEMENT[dtype] / 1e9,
        memory_gb=sheet.memory_gb * tensor_parallel,
        kv_tokens=kv_tokens,
        phases=phases,
    )


def _least_seconds(
    a: ModelArchitecture, sheet: DataSheet, dtype: str, degree: int, tokens: int, flops: float, read: float
) -> dict[Limit, float]:
    """The time that each resource needs at its published peak, as if the others cost nothing."""
    link = (sheet.device_link_gb_per_s or sheet.host_link_gb_per_s) * 1e9
    sent = 2 * a.layers * 2 * (degree - 1) / degree * tokens * a.hidden_size * activation_bytes_per_element(dtype)
    return {
        "arithmetic": flops / (sheet.peak_tflops(dtype) * 1e12 * degree),
        "memory": read / (sheet.bandwidth_gb_per_s * 1e9 * degree),
        "link": sent / link if degree > 1 else 0.0,
    }
