"""How far log-probabilities drift from those in float32 with bfloat16 weights and cache, and with int8 weights.

    python tests/benchmarks/precision_drift.py PROMPTS.jsonl [--model DIR or name] [--dtype bfloat16 int8]
        [--prompts 40] [--output 32] [--json]

PROMPTS.jsonl has one object a line with its text in `turns[0]` (as MT-Bench's questions) or `prompt`. Each prompt goes
through the chat template and is continued greedily in float32; all precisions then score the continuation token by
token, each over its own cache.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from superinfer.executor.config import WorkerConfig
from superinfer.executor.model_runner import ModelRunner
from superinfer.executor.models.catalog import resolve_model
from superinfer.executor.tokenizer import Tokenizer, load_tokenizer
from superinfer.scheduler.request import SamplingParams
from superinfer.scheduler.steps import NewSequence, SequenceStep, StepPlan


class Scorer:
    """One precision of the model."""

    def __init__(self, directory: Path, dtype: str) -> None:
        config = WorkerConfig(domain_id="d", model_dir=str(directory), dtype=dtype, kv_cache_bytes=2**29)  # type: ignore[arg-type]
        self.runner = ModelRunner(config)

    def run(self, prompt: list[int], output: int, forced: list[int] | None) -> tuple[list[int], torch.Tensor]:
        """Tokens (greedy, or `forced`), and the log-probabilities they were chosen by (output, vocabulary)."""
        runner = self.runner
        params = SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True)
        blocks = list(range(-(-(len(prompt) + output) // runner.block_size)))
        tokens: list[int] = []
        rows: list[torch.Tensor] = []
        # A sequence takes its own choice as its next token, so each step has a new one that is given all tokens before.
        for i in range(output):
            known = prompt + tokens
            first = i == 0
            new = [NewSequence(sequence_id=i, token_ids=known, prompt_length=len(prompt), sampling=params)]
            count = len(known) if first else 1
            step = SequenceStep(sequence_id=i, start=len(known) - count, count=count, new_blocks=blocks)
            kept: list[np.ndarray] = []
            runner._sample = lambda logits, _sequences, _result, kept=kept: kept.append(logits.copy())  # type: ignore[method-assign, misc]
            runner.execute(StepPlan(domain_id="d", step_id=0, new_sequences=new, sequences=[step]))
            logits = torch.from_numpy(kept[0][0])
            rows.append(logits.log_softmax(-1))
            tokens.append(forced[i] if forced else int(logits.argmax()))
            runner.execute(StepPlan(domain_id="d", step_id=0, finished=[i]))
        return tokens, torch.stack(rows)


@dataclass
class Drift:
    """What one precision's log-probabilities are beside the exact ones, token by token."""

    chosen: list[torch.Tensor] = field(default_factory=list)
    divergence: list[torch.Tensor] = field(default_factory=list)
    same: list[torch.Tensor] = field(default_factory=list)
    changes: list[torch.Tensor] = field(default_factory=list)

    def add(self, tokens: list[int], exact: torch.Tensor, rounded: torch.Tensor) -> None:
        """One prompt's log-probabilities (token, vocabulary), and the tokens that were chosen."""
        at = torch.tensor(tokens)[:, None]
        of_exact, of_rounded = exact.gather(1, at)[:, 0], rounded.gather(1, at)[:, 0]
        self.chosen.append((of_exact - of_rounded).abs())
        self.divergence.append((exact.exp() * (exact - rounded)).sum(-1))
        self.same.append(exact.argmax(-1) == rounded.argmax(-1))
        self.changes.append(of_rounded - of_exact)

    def figures(self) -> dict[str, float | int]:
        """Over all tokens; log-probabilities are natural logarithms."""
        drift = torch.cat(self.chosen)
        return {
            "tokens": len(drift),
            "log_probability_drift_mean": float(drift.mean()),
            "log_probability_drift_p99": float(drift.quantile(0.99)),
            "log_probability_change_mean": float(torch.cat(self.changes).mean()),
            "kl_divergence_mean": float(torch.cat(self.divergence).mean()),
            "same_most_likely_token": float(torch.cat(self.same).float().mean()),
        }


def read_prompts(path: Path, tokenizer: Tokenizer, count: int, limit: int) -> list[list[int]]:
    """Token ids of the first `count` prompts, cut to `limit` tokens."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines()[:count]:
        record = json.loads(line)
        text = record["turns"][0] if "turns" in record else record["prompt"]
        ids = tokenizer.apply_chat_template([{"role": "user", "content": text}])
        found.append(ids[:limit])
    return found


def main() -> None:
    """Measure and print; data to stdout, progress to stderr."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", nargs="+", choices=["bfloat16", "int8"], default=["bfloat16", "int8"])
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--output", type=int, default=32, help="tokens scored for each prompt")
    parser.add_argument("--limit", type=int, default=256, help="prompts are cut to this many tokens")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    directory = resolve_model(options.model).directory
    prompts = read_prompts(options.file, load_tokenizer(directory), options.prompts, options.limit)
    exact_scorer = Scorer(directory, "float32")
    scorers = {dtype: Scorer(directory, dtype) for dtype in options.dtype}
    drifts = {dtype: Drift() for dtype in options.dtype}
    for n, prompt in enumerate(prompts):
        print(f"\rprompt {n + 1} of {len(prompts)}", end="", file=sys.stderr)
        tokens, exact = exact_scorer.run(prompt, options.output, None)
        for dtype, scorer in scorers.items():
            drifts[dtype].add(tokens, exact, scorer.run(prompt, options.output, tokens)[1])
    print(file=sys.stderr)
    figures = {dtype: drift.figures() for dtype, drift in drifts.items()}
    if options.json:
        print(json.dumps(figures))
        return
    for dtype, of_dtype in figures.items():
        print(f"{dtype} against float32")
        for name, value in of_dtype.items():
            print(f"{name:>32} {value:.5f}" if isinstance(value, float) else f"{name:>32} {value}")


if __name__ == "__main__":
    main()
