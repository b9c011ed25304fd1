"""Choosing the next token from logits: penalties, temperature, filters and a draw that can be repeated anywhere.

Meanings and order are those of the OpenAI API and vLLM: repetition, frequency and presence penalties, temperature,
min-p, top-k, top-p, draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from superinfer.scheduler.request import SamplingParams

FloatArray = npt.NDArray[np.floating[Any]]


def greedy(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """The most likely token of each row; the lowest id where several are equal. logits (rows, vocabulary)."""
    best: npt.NDArray[np.int64] = np.argmax(logits, axis=-1)
    return best


def sample(
    logits: npt.NDArray[np.float32], params: SamplingParams, token_ids: Sequence[int], prompt_length: int
) -> int:
    """The next token of one sequence. logits (vocabulary,); token_ids is its prompt and output so far."""
    if params.has_penalties:
        logits = penalise(logits, params, token_ids, prompt_length)
    if params.is_greedy:
        return int(np.argmax(logits))
    probabilities = distribution(logits, params)
    return draw(probabilities, params.seed, len(token_ids) - prompt_length)


def penalise(
    logits: npt.NDArray[np.float32], params: SamplingParams, token_ids: Sequence[int], prompt_length: int
) -> npt.NDArray[np.float32]:
    """Logits with penalties applied; the input stays as it is.

    The repetition penalty looks at prompt and output (arXiv 1909.05858), frequency and presence at the output only.
    """
    logits = logits.copy()
    if params.repetition_penalty != 1.0:
        seen = np.unique(np.asarray(token_ids, np.int64))
        values = logits[seen]
        logits[seen] = np.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    if len(token_ids) > prompt_length and (params.frequency_penalty or params.presence_penalty):
        seen, counts = np.unique(np.asarray(token_ids[prompt_length:], np.int64), return_counts=True)
        logits[seen] -= (params.frequency_penalty * counts + params.presence_penalty).astype(np.float32)
    return logits


def distribution(logits: npt.NDArray[np.float32], params: SamplingParams) -> FloatArray:
    """Probabilities after temperature, min-p, top-k and top-p; they sum to 1. temperature must be above 0."""
    # Below about 1e-38 the division would be by zero; from 1e-6 down the most likely token has all the weight anyway.
    scaled = (logits - logits.max()) / np.float32(max(params.temperature, 1e-6))
    weights = np.exp(scaled, dtype=np.float64)
    if params.min_p > 0.0:
        # The largest weight is exp(0) = 1, so the ratio to the most likely token is the weight itself.
        weights[weights < params.min_p] = 0.0
    if 0 < params.top_k < len(weights):
        kth = np.partition(weights, -params.top_k)[-params.top_k]
        weights[weights < kth] = 0.0
    if params.top_p < 1.0:
        weights = _keep_top_p(weights, params.top_p)
    probabilities: FloatArray = weights / weights.sum()
    return probabilities


def _keep_top_p(weights: FloatArray, top_p: float) -> FloatArray:
    """Keep the fewest most likely tokens whose share reaches top_p, at least one (arXiv 1904.09751)."""
    candidates = np.flatnonzero(weights)
    order = candidates[np.argsort(-weights[candidates], kind="stable")]
    shares = np.cumsum(weights[order])
    count = int(np.searchsorted(shares, top_p * shares[-1])) + 1
    kept = np.zeros_like(weights)
    kept[order[:count]] = weights[order[:count]]
    return kept


def draw(probabilities: FloatArray, seed: int, output_index: int) -> int:
    """One draw that depends on nothing but (seed, output_index) and the probabilities.

    Philox is a counter-based generator (SC'11, Salmon et al.): the index is its counter, so no state is carried and
    a worker that takes a request over draws what the first one would have drawn.
    """
    generator = np.random.Generator(np.random.Philox(key=seed % 2**64, counter=[0, 0, 0, output_index]))
    edges = np.cumsum(probabilities)
    token = int(np.searchsorted(edges, generator.random() * edges[-1], side="right"))
    # Rounding can put the point on the last edge; the last token that has any probability is meant.
    return min(token, int(np.flatnonzero(probabilities)[-1]))
