"""The engine's reading of a config, the profiler's and the checkpoint itself agree on what a model occupies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open

from superinfer.executor.model.architecture import load_architecture
from superinfer.profiler.architecture import load_architecture as load_profiled
from superinfer.profiler.static import kv_bytes_per_token


def test_parameters_and_cache_of_a_token_are_counted_alike(family: str, checkpoint: Callable[..., Path]) -> None:
    directory = checkpoint(family)
    ours = load_architecture(directory)
    with safe_open(directory / "model.safetensors", framework="pt") as file:
        stored = sum(torch.Size(file.get_slice(name).get_shape()).numel() for name in file.keys())  # noqa: SIM118
    assert ours.parameters == stored
    profiled = load_profiled(directory)
    assert profiled.parameters == ours.parameters
    for dtype in ("float32", "bfloat16"):
        assert kv_bytes_per_token(profiled, dtype) == ours.kv_bytes_per_token(getattr(torch, dtype).itemsize)
