"""The four static dimensions of a model from its architecture: compute, bandwidth, memory, communication.

Conventions. A product of an m×k and a k×n matrix is 2·m·n·k FLOPs, the output head included; attention counts
the score and value products over the full S×S square, as torch's FlopCounterMode counts
scaled_dot_product_attention. Bytes are the least that must cross the memory bus: weights once a step, the KV
cache once, embedding rows; activations are taken to stay in cache.
"""

from __future__ import annotations

import msgspec

from superinfer.profiler.architecture import ModelArchitecture
from superinfer.profiler.latency_model import StepShape

BYTES_PER_ELEMENT = {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 1, "int8": 1}
HELD_BYTES_PER_WEIGHT = {**BYTES_PER_ELEMENT, "int8": 1 + 4 / 32}
"""Of weights that a worker holds in another precision than its cache: int8 with a float32 scale for every 32."""
"""Bytes of a weight and of a KV cache element, the same for both."""

TENSOR_PARALLEL_DEGREES = (2, 4, 8)
MIXTURE_BATCHES = (1, 8, 32, 128)
MEMORY_CONTEXTS = (2_048, 8_192, 32_768, 131_072)
MEMORY_BATCHES = (1, 8, 32, 128)


class ComputeDensity(msgspec.Struct, frozen=True, kw_only=True):
    """Arithmetic per token: a prefill of `prefill_tokens`, a decode after `decode_context` tokens."""

    parameters: int
    active_parameters: int
    prefill_tokens: int
    prefill_flops_per_token: float
    decode_context: int
    decode_flops_per_token: float


class BandwidthSensitivity(msgspec.Struct, frozen=True, kw_only=True):
    """Memory traffic per token and phase at batch size 1, and FLOPs per byte of it."""

    prefill_read_bytes_per_token: float
    prefill_write_bytes_per_token: float
    prefill_flops_per_byte: float
    decode_read_bytes_per_token: float
    decode_write_bytes_per_token: float
    decode_flops_per_byte: float


class MemoryNeed(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of weights and KV cache together for `batch` sequences of `context` tokens each."""

    context: int
    batch: int
    total_bytes: float


class MemoryPattern(msgspec.Struct, frozen=True, kw_only=True):
    """What the model occupies: weights, and KV cache per token; `max_position` is the longest context.

    Where layers have a sliding window, tokens behind it are not kept: `needs` counts that.
    """

    weight_bytes: int
    kv_bytes_per_token: int
    max_position: int | None
    needs: list[MemoryNeed] = []


class TouchedExperts(msgspec.Struct, frozen=True, kw_only=True):
    """Experts of a layer that a step of `tokens` is expected to read, with even and independent routing."""

    tokens: int
    experts: float


class Communication(msgspec.Struct, frozen=True, kw_only=True):
    """What one of `degree` devices sends per token.

    All-reduce: tensor parallelism, twice a layer, by a ring. All-to-all: expert parallelism, dispatch and
    combine of a token's experts; 0 for a dense model. `flops_per_byte` is the device's share of the prefill
    FLOPs over its all-reduce bytes.
    """

    degree: int
    all_reduce_bytes_per_token: float
    all_to_all_bytes_per_token: float
    flops_per_byte: float


class StaticFeatures(msgspec.Struct, frozen=True, kw_only=True):
    """The four dimensions of one model at one precision."""

    compute: ComputeDensity
    bandwidth: BandwidthSensitivity
    memory: MemoryPattern
    communication: list[Communication]
    touched_experts: list[TouchedExperts] = []


def prefill_flops(architecture: ModelArchitecture, tokens: int) -> float:
    """FLOPs of one forward pass over a prompt of `tokens`, with the head at every position."""
    a = architecture
    linear = 2.0 * tokens * (a.linear_weights_per_token + a.head_weights)
    return linear + a.layers * a.prefill_pair_flops * tokens * tokens


def decode_flops(architecture: ModelArchitecture, context: int) -> float:
    """FLOPs of one decoded token with `context` tokens before it."""
    a = architecture
    keys = a.visible_keys(context + 1)
    return 2.0 * (a.linear_weights_per_token + a.head_weights) + a.layers * a.decode_pair_flops * keys


def step_flops(architecture: ModelArchitecture, shape: StepShape) -> float:
    """FLOPs that an engine step needs: causal (query, key) pairs alone, the head for the sampled rows alone."""
    a = architecture
    linear = 2.0 * shape.tokens * a.linear_weights_per_token + 2.0 * shape.rows * a.head_weights
    decode_pairs = shape.decode_context + shape.decodes
    attention = a.prefill_pair_flops * shape.prefill_pairs + a.decode_pair_flops * decode_pairs
    return linear + a.layers * attention


def kv_bytes_per_token(architecture: ModelArchitecture, dtype: str) -> int:
    """KV cache bytes of one token in all layers."""
    return architecture.layers * architecture.cached_elements * BYTES_PER_ELEMENT[dtype]


def _weight_bytes(dtype: str, weight_dtype: str | None) -> float:
    return BYTES_PER_ELEMENT[dtype] if weight_dtype is None else HELD_BYTES_PER_WEIGHT[weight_dtype]


def activation_bytes_per_element(dtype: str) -> int:
    """Bytes of an activation that devices send each other: 8-bit models keep them in 16 bits."""
    return max(2, BYTES_PER_ELEMENT[dtype])


def memory_bytes(
    architecture: ModelArchitecture, dtype: str, *, context: int, batch: int, weight_dtype: str | None = None
) -> float:
    """Bytes of the weights and of the KV cache of `batch` sequences of `context` tokens.

    `weight_dtype` is that of the weights where they are held in another than the cache.
    """
    weights = architecture.parameters * _weight_bytes(dtype, weight_dtype)
    return weights + batch * architecture.visible_keys(context) * kv_bytes_per_token(architecture, dtype)


def step_read_bytes(
    architecture: ModelArchitecture, dtype: str, *, tokens: int, context: float, weight_dtype: str | None = None
) -> float:
    """Bytes that a step of `tokens` must read at least: weights once, embedding rows, `context` tokens of KV.

    `weight_dtype` is that of the weights where they are held in another than the cache. Of a mixture of experts, the
    expected number of experts that at least one of the tokens is routed to.
    """
    a = architecture
    untouched_weights = a.mixture_layers * (a.experts - a.touched_experts(tokens)) * a.expert_weights
    unread_embedding = 0 if a.tied_embeddings else a.head_weights
    weights = a.parameters - untouched_weights - unread_embedding + tokens * a.hidden_size
    return weights * _weight_bytes(dtype, weight_dtype) + context * kv_bytes_per_token(a, dtype)


def static_features(
    architecture: ModelArchitecture,
    dtype: str,
    *,
    prefill_tokens: int = 512,
    decode_context: int = 512,
    weight_dtype: str | None = None,
) -> StaticFeatures:
    """The four dimensions at a stated prompt length and decode context (tokens).

    `weight_dtype` is that of the weights where they are held in another than the cache.
    """
    a = architecture
    kv_bytes = kv_bytes_per_token(a, dtype)
    prefill_per_token = prefill_flops(a, prefill_tokens) / prefill_tokens
    decode_per_token = decode_flops(a, decode_context)
    prefill_read = step_read_bytes(a, dtype, tokens=prefill_tokens, context=0, weight_dtype=weight_dtype)
    prefill_read /= prefill_tokens
    decode_read = step_read_bytes(a, dtype, tokens=1, context=a.visible_keys(decode_context), weight_dtype=weight_dtype)
    return StaticFeatures(
        compute=ComputeDensity(
            parameters=a.parameters,
            active_parameters=a.active_parameters,
            prefill_tokens=prefill_tokens,
            prefill_flops_per_token=prefill_per_token,
            decode_context=decode_context,
            decode_flops_per_token=decode_per_token,
        ),
        bandwidth=BandwidthSensitivity(
            prefill_read_bytes_per_token=prefill_read,
            prefill_write_bytes_per_token=kv_bytes,
            prefill_flops_per_byte=prefill_per_token / (prefill_read + kv_bytes),
            decode_read_bytes_per_token=decode_read,
            decode_write_bytes_per_token=kv_bytes,
            decode_flops_per_byte=decode_per_token / (decode_read + kv_bytes),
        ),
        memory=MemoryPattern(
            weight_bytes=int(a.parameters * _weight_bytes(dtype, weight_dtype)),
            kv_bytes_per_token=kv_bytes,
            max_position=a.max_position,
            needs=[
                MemoryNeed(
                    context=context,
                    batch=batch,
                    total_bytes=memory_bytes(a, dtype, context=context, batch=batch, weight_dtype=weight_dtype),
                )
                for context in MEMORY_CONTEXTS
                if context <= (a.max_position or context)
                for batch in MEMORY_BATCHES
            ],
        ),
        communication=[
            _communication(a, activation_bytes_per_element(dtype), degree, prefill_per_token)
            for degree in TENSOR_PARALLEL_DEGREES
        ],
        touched_experts=[TouchedExperts(tokens=tokens, experts=a.touched_experts(tokens)) for tokens in MIXTURE_BATCHES]
        if a.experts > 1
        else [],
    )


def _communication(a: ModelArchitecture, element_bytes: int, degree: int, flops_per_token: float) -> Communication:
    remote_share = (degree - 1) / degree
    activation_bytes = a.hidden_size * element_bytes
    all_reduce = 2 * a.layers * activation_bytes * 2 * remote_share
    all_to_all = 0.0
    if a.experts > 1:
        all_to_all = 2 * a.mixture_layers * a.experts_per_token * activation_bytes * remote_share
    return Communication(
        degree=degree,
        all_reduce_bytes_per_token=all_reduce,
        all_to_all_bytes_per_token=all_to_all,
        flops_per_byte=flops_per_token / degree / all_reduce,
    )
