"""A latency model about as slow as one CPU core with a small model."""

from __future__ import annotations

from superinfer.profiler.latency_model import LatencyModel

MODEL = LatencyModel(
    launch_s=0.002,
    linear_points=[(1, 0.05), (8, 0.068), (32, 0.145), (128, 0.4), (256, 0.83)],
    decode_context_s=4e-6,
    decode_s=5e-4,
    prefill_pair_s=3e-7,
    chunk_s=2e-3,
    row_s=1e-3,
)
