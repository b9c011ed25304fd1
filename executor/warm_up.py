"""Runs a decoder once, so that every kernel it needs is compiled or loaded: before requests come, or before a fork."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from superinfer.executor.batch_builder import build_batch
from superinfer.executor.model.architecture import Architecture
from superinfer.executor.model.decoder import Decoder
from superinfer.executor.model.weights import RandomWeights
from superinfer.executor.sequence import Sequence
from superinfer.scheduler.request import SamplingParams
from superinfer.scheduler.steps import NewSequence, SequenceStep

_SMALL_HIDDEN_SIZE = 512
_SMALL_VOCABULARY = 512
_SMALL_LENGTH = 64


def warm_up(decoder: Decoder, pool: npt.NDArray[Any], block: int, block_size: int, max_model_len: int) -> None:
    """A decode and a prefill in a block of the pool that nobody uses."""
    with torch.inference_mode():
        for tokens in {1, min(2, max_model_len, block_size)}:
            params = SamplingParams(max_tokens=2, temperature=0.0)
            sequence = Sequence(
                NewSequence(sequence_id=-1, token_ids=[0] * tokens, prompt_length=tokens, sampling=params)
            )
            sequence.blocks = [block]
            chunks = [(SequenceStep(sequence_id=-1, start=0, count=tokens), sequence)]
            batch, _ = build_batch([sequence], [], block_size) if tokens == 1 else build_batch([], chunks, block_size)
            decoder.forward(batch, pool)


class StoredAs:
    """Random weights as a checkpoint of another type would have them; implements `WeightSource`."""

    def __init__(self, weights: RandomWeights, stored: torch.dtype) -> None:
        self._weights, self._stored = weights, stored

    def has(self, name: str) -> bool:
        """As of the weights."""
        return self._weights.has(name)

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """As of the weights, in the stored type."""
        return self._weights.get(name, shape).to(self._stored)


def load_kernels(
    architecture: Architecture,
    *,
    stored: torch.dtype,
    of_weights: torch.dtype,
    dtype: torch.dtype,
    pool_type: npt.DTypeLike,
    block_size: int,
) -> None:
    """Load the kernels of such a model, which depend on its kind and not on its size, and keep nothing else.

    Its weights are `stored` in the checkpoint and rounded to `of_weights`; all else is of `dtype`.
    """
    small = smaller(architecture)
    with torch.inference_mode():
        weights = StoredAs(RandomWeights(small.initializer_range, tied_head=small.tied_head), stored)
        decoder = Decoder(small, weights, dtype, _SMALL_LENGTH, None, of_weights)
    pool = np.zeros((1, small.layers, 2, block_size, small.kv_heads, small.head_dim), pool_type)
    warm_up(decoder, pool, 0, block_size, _SMALL_LENGTH)


def smaller(architecture: Architecture) -> Architecture:
    """One that is built alike and takes no time: few layers, of every kind that there is, and narrow ones."""
    kinds = architecture.experts.layers if architecture.experts else frozenset[int]()
    layers = next((i + 1 for i in range(architecture.layers) if (i in kinds) != (0 in kinds)), 1)
    kv_heads = min(architecture.kv_heads, 2)
    return replace(
        architecture,
        vocab_size=min(architecture.vocab_size, _SMALL_VOCABULARY),
        hidden_size=min(architecture.hidden_size, _SMALL_HIDDEN_SIZE),
        intermediate_size=min(architecture.intermediate_size, _SMALL_HIDDEN_SIZE),
        layers=layers,
        heads=kv_heads * architecture.group,
        kv_heads=kv_heads,
        windows=architecture.windows[:layers],
        experts=None
        if architecture.experts is None
        else replace(
            architecture.experts,
            count=architecture.experts.per_token,
            intermediate_size=min(architecture.experts.intermediate_size, _SMALL_HIDDEN_SIZE),
            shared_size=min(architecture.experts.shared_size, _SMALL_HIDDEN_SIZE),
        ),
    )
