"""The gated feed-forward layer (SwiGLU, arXiv 2002.05202), gate and up projections fused into one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from superinfer.executor.model.kernels import LOG2_E, as_numpy, exp2, kernel, narrow_like, widen
from superinfer.executor.model.linear import Linear


@kernel
def silu_mul(gate_up: Any, out: Any) -> None:
    """out = silu(gate) · up. gate_up (tokens, 2 · intermediate), gate first; out (tokens, intermediate)."""
    tokens, size = out.shape
    for t in range(tokens):
        gates = gate_up[t, :size]
        ups = gate_up[t, size:]
        for d in range(size):
            gate = widen(gates[d])
            # For gates below about -88 the sigmoid is 0 to float32; the exponent is clamped to stay finite.
            power = min(-gate * np.float32(LOG2_E), np.float32(126.0))
            out[t, d] = narrow_like(out, gate * widen(ups[d]) / (np.float32(1.0) + exp2(power)))


class Mlp:
    """down(silu(gate(x)) · up(x))."""

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        self._gate_up = gate_up
        self._down = down

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x (tokens, hidden) → (tokens, hidden)."""
        gate_up = self._gate_up(x)
        hidden = torch.empty(gate_up.shape[0], gate_up.shape[1] // 2, dtype=gate_up.dtype)
        silu_mul(as_numpy(gate_up), as_numpy(hidden))
        return self._down(hidden)
