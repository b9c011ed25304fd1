"""A latency model of round figures for what runs on simulated devices."""

from __future__ import annotations

from superinfer.profiler.latency_model import LatencyModel

MODEL = LatencyModel(
    launch_s=0.01,
    linear_points=[(1, 0.05), (256, 0.8)],
    decode_context_s=1e-6,
    decode_s=1e-3,
    prefill_pair_s=1e-7,
    chunk_s=1e-4,
    row_s=1e-4,
)
