"""Residual addition fused with root-mean-square normalisation (arXiv 1910.07467); the residual stays float32."""

from __future__ import annotations

from typing import Any

import numpy as np

from superinfer.executor.model.kernels import kernel, narrow_like, widen


@kernel
def norm(residual: Any, weight: Any, epsilon: Any, out: Any) -> None:
    """out = rms_norm(residual) · weight. residual (tokens, hidden) float32; out in the compute type."""
    tokens, hidden = residual.shape
    for t in range(tokens):
        total = np.float32(0.0)
        for d in range(hidden):
            total += residual[t, d] * residual[t, d]
        factor = np.float32(1.0) / np.sqrt(total / np.float32(hidden) + epsilon)
        for d in range(hidden):
            out[t, d] = narrow_like(out, residual[t, d] * factor * weight[d])


@kernel
def add_norm(residual: Any, delta: Any, weight: Any, epsilon: Any, out: Any) -> None:
    """residual += delta, then out = rms_norm(residual) · weight; delta and out in the compute type."""
    tokens, hidden = residual.shape
    for t in range(tokens):
        total = np.float32(0.0)
        for d in range(hidden):
            value = residual[t, d] + widen(delta[t, d])
            residual[t, d] = value
            total += value * value
        factor = np.float32(1.0) / np.sqrt(total / np.float32(hidden) + epsilon)
        for d in range(hidden):
            out[t, d] = narrow_like(out, residual[t, d] * factor * weight[d])
