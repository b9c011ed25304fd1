"""Decode and prefill tokens/s of our ModelRunner beside transformers' `generate`, same weights, in one run.

    python tests/benchmarks/decode_speed.py [--model DIR or name] [--threads 1] [--dtype float32] [--json]

Figures are medians of repeats that alternate between the two, so that a busy machine slows both alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
from transformers import AutoModelForCausalLM

from superinfer.executor.config import WorkerConfig
from superinfer.executor.model_runner import ModelRunner
from superinfer.executor.models.catalog import resolve_model
from superinfer.scheduler.request import SamplingParams
from superinfer.scheduler.steps import NewSequence, SequenceStep, StepPlan

Times = tuple[float, float]
"""Seconds of the prefill with the first token, and of all later tokens."""


def ours(runner: ModelRunner, prompts: list[list[int]], output: int, chunk: int) -> Times:
    """Prefill all prompts in steps of at most `chunk` tokens, then decode them as one batch."""
    length, size = len(prompts[0]), runner.block_size
    per_sequence = -(-(length + output) // size)
    params = SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True)
    started = time.perf_counter()
    new = [
        NewSequence(sequence_id=i, token_ids=prompt, prompt_length=length, sampling=params)
        for i, prompt in enumerate(prompts)
    ]
    todo = [(i, start) for i in range(len(prompts)) for start in range(0, length, chunk)]
    per_step = max(1, chunk // min(chunk, length))
    for first in range(0, len(todo), per_step):
        steps = [
            SequenceStep(
                sequence_id=i,
                start=start,
                count=min(chunk, length - start),
                new_blocks=list(range(i * per_sequence, (i + 1) * per_sequence)) if start == 0 else [],
            )
            for i, start in todo[first : first + per_step]
        ]
        runner.execute(StepPlan(domain_id="d", step_id=0, new_sequences=new, sequences=steps))
        new = []
    prefilled = time.perf_counter()
    for _ in range(output - 1):
        runner.execute(StepPlan(domain_id="d", step_id=0, decodes=list(range(len(prompts)))))
    ended = time.perf_counter()
    runner.execute(StepPlan(domain_id="d", step_id=0, finished=list(range(len(prompts)))))
    return prefilled - started, ended - prefilled


def theirs(model: torch.nn.Module, prompts: list[list[int]], output: int) -> Times:
    """`generate` for one token, then for all: the difference is its decoding."""
    ids = torch.tensor(prompts)

    def generate(tokens: int) -> float:
        started = time.perf_counter()
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
        )
        return time.perf_counter() - started

    first = generate(1)
    return first, generate(output) - first


def measure(run: Callable[[], Times], other: Callable[[], Times], repeats: int) -> tuple[Times, Times]:
    """Medians of both, run in turn."""
    pairs = [(run(), other()) for _ in range(repeats)]
    return tuple(  # type: ignore[return-value]
        tuple(statistics.median(pair[who][phase] for pair in pairs) for phase in (0, 1)) for who in (0, 1)
    )


def main() -> None:
    """Measure and print; data to stdout, progress to stderr."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "int8"], default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt", type=int, default=64, help="prompt tokens of each sequence")
    parser.add_argument("--output", type=int, default=9, help="output tokens of each sequence")
    parser.add_argument("--chunk", type=int, default=256, help="our tokens per prefill step")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    directory = resolve_model(options.model).directory
    config = WorkerConfig(domain_id="d", model_dir=str(directory), dtype=options.dtype, threads=options.threads)
    runner = ModelRunner(config)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, options.dtype))
    torch.set_num_threads(options.threads)
    generator = torch.Generator().manual_seed(0)
    vocabulary = runner.architecture.vocab_size
    rows = []
    for batch in options.batches:
        print(f"batch {batch} …", file=sys.stderr)
        prompts = torch.randint(3, vocabulary, (batch, options.prompt), generator=generator).tolist()
        # One untimed decode step each: first calls allocate.
        ours(runner, prompts[:1], 2, options.chunk)
        theirs(model, prompts[:1], 2)
        mine, other = measure(
            lambda prompts=prompts: ours(runner, prompts, options.output, options.chunk),
            lambda prompts=prompts: theirs(model, prompts, options.output),
            options.repeats,
        )
        prefill, decode = batch * options.prompt, batch * (options.output - 1)
        rows.append(
            {
                "batch": batch,
                "prefill_tokens_per_s": {
                    "superinfer": prefill / mine[0],
                    "transformers": prefill / other[0],
                },
                "decode_tokens_per_s": {"superinfer": decode / mine[1], "transformers": decode / other[1]},
            }
        )
    if options.json:
        settings = {name: value for name, value in vars(options).items() if name != "json"}
        print(json.dumps({"settings": settings, "rows": rows}))
        return
    print(f"{'batch':>5} {'phase':>8} {'superinfer':>11} {'transformers':>13} {'ratio':>6}   tokens/s")
    for row in rows:
        for phase in ("prefill", "decode"):
            figures = row[f"{phase}_tokens_per_s"]
            mine, other = figures["superinfer"], figures["transformers"]
            print(f"{row['batch']:>5} {phase:>8} {mine:>11.0f} {other:>13.0f} {mine / other:>6.2f}")


if __name__ == "__main__":
    main()
