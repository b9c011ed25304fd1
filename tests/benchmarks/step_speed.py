"""Thread time of the decoder's decode steps beside the time that memory alone would take, and of a prefill.

    python tests/benchmarks/step_speed.py [--model DIR or name] [--dtype float32 bfloat16 int8] [--repeats 5] [--json]

The limit of a step is its weights (as stored in memory, the head included) and its keys and values over the read rate
of this machine, measured in the same run. Times are the least of the repeats, in the thread's own time, so that others
on the cores count little.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import numpy as np
import torch

from superinfer.executor.config import WorkerConfig
from superinfer.executor.model.architecture import load_architecture
from superinfer.executor.model.batch import PrefillChunk, TokenBatch
from superinfer.executor.model.int8_panels import GROUP_INPUTS
from superinfer.executor.model.kernels import as_numpy
from superinfer.executor.model_runner import ModelRunner
from superinfer.executor.models.catalog import resolve_model
from superinfer.profiler.device import memory_read_gb_per_s

NO_DECODES = (np.zeros((0, 0), np.int64), np.zeros(0, np.int64))


class Steps:
    """Steps over scattered blocks of one runner's cache. Their contents do not matter, but that they were written does:
    memory that never was is one page of zeros, and reading it again and again is reading a cache.
    """

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        runner._cache.array[...] = as_numpy(torch.full((1,), 0.5, dtype=runner.dtype))[0]
        self._random = np.random.default_rng(0)

    def _run(self, batch: TokenBatch) -> float:
        started_s = time.thread_time()
        with torch.inference_mode():
            self._runner._decoder.forward(batch, self._runner._cache.array)
        return time.thread_time() - started_s

    def _slots(self, table: np.ndarray, positions: np.ndarray) -> np.ndarray:
        size = self._runner.block_size
        return table[positions // size] * size + positions % size

    def decode_s(self, rows: int, context: int, repeats: int) -> float:
        """Seconds of one decode step."""
        width = -(-context // self._runner.block_size)
        tables = self._random.permutation(self._runner.kv_blocks)[: rows * width].reshape(rows, width)
        positions = np.full(rows, context - 1)
        batch = TokenBatch(
            token_ids=self._random.integers(3, self._runner.architecture.vocab_size, rows),
            positions=positions,
            slots=np.concatenate([self._slots(table, positions[:1]) for table in tables]),
            block_tables=tables,
            context_lengths=positions + 1,
            sample_rows=np.arange(rows),
        )
        return min(self._run(batch) for _ in range(repeats))

    def prefill_s(self, tokens: int, chunk: int) -> float:
        """Seconds of a whole prompt in chunks."""
        table = self._random.permutation(self._runner.kv_blocks)[: -(-tokens // self._runner.block_size)]
        total_s = 0.0
        for start in range(0, tokens, chunk):
            positions = np.arange(start, min(start + chunk, tokens))
            batch = TokenBatch(
                token_ids=self._random.integers(3, self._runner.architecture.vocab_size, len(positions)),
                positions=positions,
                slots=self._slots(table, positions),
                block_tables=NO_DECODES[0],
                context_lengths=NO_DECODES[1],
                sample_rows=np.array([len(positions) - 1]),
                chunks=[PrefillChunk(0, start, len(positions), table)],
            )
            total_s += self._run(batch)
        return total_s


def main() -> None:
    """Measure and print; data to stdout, progress to stderr."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    every = ["float32", "bfloat16", "int8"]
    parser.add_argument("--dtype", nargs="+", choices=every, default=every)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--contexts", type=int, nargs="+", default=[80, 1000])
    parser.add_argument("--prefill", type=int, default=1024)
    parser.add_argument("--chunk", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    directory = resolve_model(options.model).directory
    tokens = max(options.batches) * (max(options.contexts) + 16)
    figures = []
    for dtype in options.dtype:
        per_token = 2 if dtype == "bfloat16" else 4
        shape = load_architecture(directory)
        config = WorkerConfig(
            domain_id="d",
            model_dir=str(directory),
            dtype=dtype,
            kv_cache_bytes=max(tokens, 2048) * shape.kv_bytes_per_token(per_token),
        )
        runner = ModelRunner(config)
        steps, gb_per_s = Steps(runner), memory_read_gb_per_s()
        for rows in options.batches:
            for context in options.contexts:
                print(f"{dtype}: {rows} × {context} …", file=sys.stderr)
                seconds = steps.decode_s(rows, context, options.repeats)
                # Panels keep a bfloat16 checkpoint's two bytes in float32 too; int8 has four bytes of scale a group.
                per_weight = 1 + 4 / GROUP_INPUTS if dtype == "int8" else 2
                moved = per_weight * shape.parameters + rows * context * shape.kv_bytes_per_token(per_token)
                figures.append(
                    {
                        "dtype": dtype,
                        "batch": rows,
                        "context": context,
                        "step_ms": 1e3 * seconds,
                        "share_of_memory_limit": moved / 1e9 / gb_per_s / seconds,
                    }
                )
        seconds = steps.prefill_s(options.prefill, options.chunk)
        figures.append({"dtype": dtype, "prefill": options.prefill, "tokens_per_s": options.prefill / seconds})
    if options.json:
        print(json.dumps(figures))
        return
    for row in figures:
        print(
            "  ".join(f"{name} {value:.3g}" if isinstance(value, float) else f"{value}" for name, value in row.items())
        )


if __name__ == "__main__":
    main()
