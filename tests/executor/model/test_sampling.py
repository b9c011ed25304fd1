"""Sampling against the definitions of its options, written out in the plainest way."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superinfer.executor.sampling import distribution, draw, greedy, penalise, sample
from superinfer.scheduler.request import SamplingParams

LOGITS = st.lists(st.floats(-20, 20, width=32).map(lambda x: round(x, 2)), min_size=1, max_size=40, unique=True).map(
    lambda values: np.array(values, np.float32)
)


def plain_distribution(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """temperature, min-p, top-k, top-p, one after the other over a sorted list of tokens."""
    weights = [math.exp((float(x) - float(max(logits))) / params.temperature) for x in logits]
    kept = [i for i in range(len(weights)) if weights[i] >= params.min_p * max(weights)]
    kept.sort(key=lambda i: -weights[i])
    if params.top_k:
        kept = kept[: params.top_k]
    mass, total = 0.0, sum(weights[i] for i in kept)
    chosen = []
    for i in kept:
        chosen.append(i)
        mass += weights[i]
        if mass / total >= params.top_p:
            break
    result = np.zeros(len(weights))
    for i in chosen:
        result[i] = weights[i] / sum(weights[j] for j in chosen)
    return result


@settings(max_examples=200)
@given(
    LOGITS,
    st.floats(0.2, 3.0),
    st.integers(0, 12),
    st.sampled_from([1.0, 0.95, 0.7, 0.31, 0.01]),
    st.sampled_from([0.0, 0.013, 0.21, 1.0]),
)
def test_filters_equal_their_definition(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    expected = plain_distribution(logits, params)
    np.testing.assert_allclose(distribution(logits, params), expected, atol=1e-5)


def test_draws_follow_the_distribution() -> None:
    probabilities = np.array([0.5, 0.0, 0.2, 0.3])
    counts = np.bincount([draw(probabilities, 11, i) for i in range(20_000)], minlength=4)
    np.testing.assert_allclose(counts / 20_000, probabilities, atol=0.015)
    counts = np.bincount([draw(probabilities, seed, 0) for seed in range(20_000)], minlength=4)
    np.testing.assert_allclose(counts / 20_000, probabilities, atol=0.015)


@given(LOGITS, st.integers(-(2**63), 2**63 - 1), st.integers(0, 10_000))
def test_a_draw_depends_on_seed_and_output_index_alone(logits: np.ndarray, seed: int, index: int) -> None:
    params = SamplingParams(temperature=0.8, seed=seed)
    tokens = [sample(logits, params, [0] * (prompt + index), prompt) for prompt in (1, 7)]
    assert tokens[0] == tokens[1] == sample(logits, params, [1] * (3 + index), 3)
    assert 0 <= tokens[0] < len(logits)


def test_seeds_and_indices_give_different_draws() -> None:
    flat = np.full(1000, 1e-3)
    assert len({draw(flat, 0, i) for i in range(50)}) > 40
    assert len({draw(flat, seed, 0) for seed in range(50)}) > 40


def test_greedy_takes_the_lowest_of_equal_tokens_and_ignores_seed_and_filters() -> None:
    logits = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]], np.float32)
    assert greedy(logits).tolist() == [1, 0]
    params = SamplingParams(temperature=0.0, top_k=2, top_p=0.1, seed=4)
    assert sample(logits[0], params, [0], 1) == 1


def test_penalties_apply_as_in_openai_and_vllm() -> None:
    logits = np.array([2.0, -2.0, 1.0, 4.0, 0.5], np.float32)
    tokens, prompt_length = [0, 1, 3, 3, 2], 2
    params = SamplingParams(repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25)
    expected = [2.0 / 2, -2.0 * 2, 1.0 / 2 - 0.75, 4.0 / 2 - 1.25, 0.5]
    np.testing.assert_allclose(penalise(logits, params, tokens, prompt_length), expected)
    assert logits.tolist() == [2.0, -2.0, 1.0, 4.0, 0.5]


@pytest.mark.parametrize("field", ["frequency_penalty", "presence_penalty"])
def test_output_penalties_leave_the_prompt_alone(field: str) -> None:
    logits = np.zeros(3, np.float32)
    result = penalise(logits, SamplingParams(**{field: 1.0}), [0, 0, 1], 2)
    assert result.tolist() == [0.0, -1.0, 0.0]


@given(LOGITS)
def test_very_low_and_very_high_temperatures_stay_finite(logits: np.ndarray) -> None:
    cold = distribution(logits, SamplingParams(temperature=1e-5))
    assert cold.argmax() == logits.argmax()
    hot = distribution(logits, SamplingParams(temperature=1e6))
    assert np.isfinite(cold).all()
    np.testing.assert_allclose(hot, 1 / len(logits), rtol=1e-3)


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-320])
def test_a_temperature_next_to_zero_draws_the_most_likely_token(temperature):
    logits = np.array([1.0, 3.0, 2.0], np.float32)
    assert distribution(logits, SamplingParams(max_tokens=1, temperature=temperature)).tolist() == [0.0, 1.0, 0.0]
