"""A mixture of experts (arXiv 2101.03961): a router picks a few gated feed-forward layers for each token.

Tokens are grouped by expert, so that an expert's weights are read once a step however many tokens it has, by the same
kernels as a dense layer. A token's results are added in the order of the experts: they do not depend on the batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from superinfer.executor.model.kernels import LOG2_E, as_numpy, exp2, kernel, widen
from superinfer.executor.model.linear import Linear
from superinfer.executor.model.mlp import Mlp


@kernel
def route(logits: Any, normalised: bool, choices: Any, weights: Any) -> None:
    """The likeliest experts of each token and their softmax probabilities, likeliest first, the lower index at a tie.

    logits (tokens, experts); choices and weights (tokens, experts a token); with `normalised` the weights of a token
    sum to 1.
    """
    tokens, count = logits.shape
    probabilities = np.empty(count, np.float32)
    for t in range(tokens):
        largest = widen(logits[t, 0])
        for e in range(count):
            largest = max(largest, widen(logits[t, e]))
        total = np.float32(0.0)
        for e in range(count):
            probabilities[e] = exp2((widen(logits[t, e]) - largest) * np.float32(LOG2_E))
            total += probabilities[e]
        taken = np.float32(0.0)
        for k in range(choices.shape[1]):
            best = 0
            for e in range(count):
                if probabilities[e] > probabilities[best]:
                    best = e
            choices[t, k] = best
            weights[t, k] = probabilities[best]
            taken += probabilities[best]
            probabilities[best] = np.float32(-1.0)
        divisor = taken if normalised else total
        for k in range(choices.shape[1]):
            weights[t, k] /= divisor


@kernel
def add_weighted(total: Any, rows: Any, weights: Any, results: Any) -> None:
    """total[rows[i]] += weights[i] · results[i]; total float32, results in the compute type."""
    for i in range(len(rows)):
        target = total[rows[i]]
        for d in range(len(target)):
            target[d] += weights[i] * widen(results[i, d])


@kernel
def add_shared(total: Any, x: Any, gate: Any, results: Any) -> None:
    """total[t] += sigmoid(x[t] · gate) · results[t]; gate float32, x and results in the compute type."""
    for t in range(len(total)):
        score = np.float32(0.0)
        for d in range(len(gate)):
            score += widen(x[t, d]) * gate[d]
        weight = np.float32(1.0) / (np.float32(1.0) + exp2(min(-score * np.float32(LOG2_E), np.float32(126.0))))
        for d in range(len(gate)):
            total[t, d] += weight * widen(results[t, d])


class SharedExpert:
    """An expert that every token takes, weighed by a gate of its own; gate (hidden,)."""

    def __init__(self, mlp: Mlp, gate: npt.NDArray[np.float32]) -> None:
        self._mlp = mlp
        self._gate = gate

    def add_to(self, total: npt.NDArray[np.float32], x: torch.Tensor) -> None:
        """Add this expert's share to `total` (tokens, hidden)."""
        add_shared(total, as_numpy(x), self._gate, as_numpy(self._mlp(x)))


class Experts:
    """Σ over a token's experts of weight · expert(x), plus the shared expert where there is one."""

    def __init__(
        self, router: Linear, experts: list[Mlp], per_token: int, normalised: bool, shared: SharedExpert | None
    ) -> None:
        self._router = router
        self._experts = experts
        self._per_token = per_token
        self._normalised = normalised
        self._shared = shared

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x (tokens, hidden) in the compute type → (tokens, hidden) float32."""
        tokens = x.shape[0]
        choices = np.empty((tokens, self._per_token), np.int64)
        weights = np.empty((tokens, self._per_token), np.float32)
        route(as_numpy(self._router(x)), self._normalised, choices, weights)
        order = np.argsort(choices.ravel(), kind="stable")
        rows, weights = order // self._per_token, weights.ravel()[order]
        ends = np.cumsum(np.bincount(choices.ravel(), minlength=len(self._experts))).tolist()
        total = torch.zeros(tokens, x.shape[1])
        start = 0
        for expert, end in zip(self._experts, ends, strict=True):
            if end > start:
                of_expert = rows[start:end]
                results = expert(x[torch.from_numpy(of_expert)])
                add_weighted(total.numpy(), of_expert, weights[start:end], as_numpy(results))
                start = end
        if self._shared is not None:
            self._shared.add_to(total.numpy(), x)
        return total
