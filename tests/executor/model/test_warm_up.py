"""What a process loads before workers are forked from it: all kernels of the model's kind, no thread, no model."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from superinfer.executor.config import DType, WorkerConfig
from superinfer.executor.model.architecture import load_architecture
from superinfer.executor.model_runner import ModelRunner
from superinfer.executor.warm_up import smaller
from superinfer.executor.worker_forks import ONE_THREAD

PROGRAM = """
import gc, os, sys
import msgspec
from numba.core.dispatcher import Dispatcher
from superinfer.executor.config import WorkerConfig
from superinfer.executor.model_runner import ModelRunner

def loaded():
    return sum(len(each.signatures) for each in gc.get_objects() if isinstance(each, Dispatcher))

config = msgspec.json.decode(sys.argv[1], type=WorkerConfig)
ModelRunner.preload(config)
threads, kernels = len(os.listdir("/proc/self/task")), loaded()
ModelRunner(config)
print(threads, kernels, loaded())
"""


def test_every_family_has_a_smaller_one_that_runs(family: str, checkpoint: Callable[..., Path]) -> None:
    directory = checkpoint(family)
    ModelRunner.preload(WorkerConfig(domain_id="0", model_dir=str(directory), block_size=8))
    whole = load_architecture(directory)
    small = smaller(whole)
    assert 1 <= small.layers <= whole.layers
    assert (
        {i in whole.experts.layers for i in range(small.layers)}
        == {i in whole.experts.layers for i in range(whole.layers)}
        if whole.experts
        else small.layers == 1
    )


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "dtype"), [("llama", "auto"), ("qwen2-moe", "auto"), ("llama", "int8")])
def test_a_runner_loads_no_kernel_that_was_not_preloaded(
    kind: str, dtype: DType, checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    config = WorkerConfig(
        domain_id="0", model_dir=str(checkpoint(kind)), dtype=dtype, kv_cache_bytes=1 << 24, max_model_len=128
    )
    settings = {**ONE_THREAD, "SUPERINFER_CACHE": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM, msgspec.json.encode(config).decode()]
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=True)
    threads, before, after = map(int, done.stdout.split())
    assert threads == 1
    assert after == before > 0
