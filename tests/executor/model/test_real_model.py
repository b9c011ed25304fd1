"""The real model: greedy tokens equal transformers' own, and how far bfloat16 is from float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from superinfer.executor.config import DType, WorkerConfig
from superinfer.executor.model_runner import ModelRunner
from superinfer.executor.models.catalog import resolve_model
from superinfer.executor.tokenizer import load_tokenizer
from superinfer.scheduler.request import SamplingParams
from superinfer.scheduler.steps import NewSequence, SequenceStep, StepPlan

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

PROMPTS, OUTPUT = 32, 12
SENTENCES = (
    "The committee met on Tuesday to discuss the budget of the harbour. ",
    "Write a function that returns the median of a list of numbers. ",
    "In 1869 the periodic table had sixty-three known elements. ",
    "She put the letter on the table and walked out into the rain. ",
    "What is the difference between a virus and a bacterium? ",
    "La bibliothèque ouvre à neuf heures et ferme à dix-huit heures. ",
    "def quicksort(items): return items if len(items) < 2 else ",
)


@pytest.fixture(scope="module")
def directory() -> Path:
    return resolve_model("smollm2-135m-instruct").directory


@pytest.fixture(scope="module")
def prompts(directory: Path) -> list[list[int]]:
    """Lengths from 1 to about 600 tokens, each prompt begun elsewhere in the text."""
    tokenizer = load_tokenizer(directory)
    text = [tokenizer.encode(SENTENCES[i % 7] + SENTENCES[(i * 3 + 1) % 7]) for i in range(80)]
    stream = [token for part in text for token in part]
    lengths = [round(1 + 599 * (i / (PROMPTS - 1)) ** 3) for i in range(PROMPTS)]
    return [stream[37 * i : 37 * i + length] for i, length in enumerate(lengths)]


def greedy_continuations(directory: Path, prompts: list[list[int]], outputs: list[list[int]]) -> list[list[int]]:
    """What transformers' model finds likeliest after each prompt, and after it with 1, 2, … of its output.

    That these are the output says by induction that the model's own greedy decoding gives it.
    """
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    found = []
    with torch.inference_mode():
        for prompt, output in zip(prompts, outputs, strict=True):
            logits = model(torch.tensor([prompt + output[:-1]]), logits_to_keep=len(output)).logits
            found.append(logits[0].argmax(-1).tolist())
    return found


def test_greedy_equals_transformers_batched_chunked_rotated_joining_and_leaving(
    directory: Path, prompts: list[list[int]], driver: Any
) -> None:
    run = driver(directory, kv_cache_bytes=700 * 2**20, host_blocks=600, max_model_len=1024, block_size=16)
    waiting, running = list(range(PROMPTS)), []
    away: dict[int, int] = {}
    rotated: set[int] = set()
    while waiting or running or away:
        for _ in range(min(2, len(waiting))):
            # Long and short prompts join in turn, so that decodes and chunks share most steps.
            joining = waiting.pop(0 if len(waiting) % 2 else -1)
            run.add(joining, prompts[joining], SamplingParams(max_tokens=OUTPUT, temperature=0.0))
            running.append(joining)
        for i in [i for i, rounds in away.items() if rounds == 0]:
            run.rotate_in(i)
            running.append(i)
            del away[i]
        for i in list(running):
            done = len(run.tokens[i])
            if i not in rotated and done == 1 + i % (OUTPUT - 3):
                run.rotate_out(i)
                running.remove(i)
                rotated.add(i)
                away[i] = 3
        budget = 96
        for i in running:
            left = run.lengths[i] - run.computed[i]
            count = min(left, budget, 64)
            if count:
                run.advance(i, count)
                budget -= count
        run.run()
        away = {i: rounds - 1 for i, rounds in away.items()}
        for i in [i for i in running if run.finishes[i]]:
            running.remove(i)
            run.forget(i)
    assert len(rotated) > PROMPTS // 2
    outputs = [run.tokens[i] for i in range(PROMPTS)]
    assert all(len(output) == OUTPUT or run.finishes[i] == "stop" for i, output in enumerate(outputs))
    reference = greedy_continuations(directory, prompts, outputs)
    wrong = [i for i in range(PROMPTS) if outputs[i] != reference[i]]
    assert not wrong, {i: (outputs[i], reference[i]) for i in wrong}


def log_probabilities(directory: Path, dtype: DType, prompts: list[list[int]]) -> list[torch.Tensor]:
    """Of each prompt's next token, from a ModelRunner's own logits."""
    config = WorkerConfig(domain_id="d", model_dir=str(directory), dtype=dtype, max_model_len=1024)
    runner = ModelRunner(config)
    kept: list[torch.Tensor] = []

    def keep(rows: Any, _sequences: Any, _result: Any) -> None:
        kept.extend(torch.from_numpy(rows).log_softmax(-1))

    runner._sample = keep  # type: ignore[method-assign]
    for i, prompt in enumerate(prompts):
        new = NewSequence(sequence_id=i, token_ids=prompt, prompt_length=len(prompt), sampling=SamplingParams())
        step = SequenceStep(sequence_id=i, start=0, count=len(prompt), new_blocks=list(range(40)))
        runner.execute(StepPlan(domain_id="d", step_id=i, new_sequences=[new], sequences=[step], finished=[i - 1]))
    return kept


def test_bfloat16_log_probabilities_stay_near_float32(
    directory: Path, prompts: list[list[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = prompts[10:26:4]
    full, half = (log_probabilities(directory, dtype, chosen) for dtype in ("float32", "bfloat16"))
    likely = [f > f.max() - 10 for f in full]
    differences = torch.cat([(f - h).abs()[mask] for f, h, mask in zip(full, half, likely, strict=True)])
    everywhere = torch.stack([(f - h).abs().mean() for f, h in zip(full, half, strict=True)]).mean()
    with capsys.disabled():
        print(
            f"\nbfloat16 against float32, {len(chosen)} prompts: mean |Δ log p| {everywhere:.4f} over the vocabulary, "
            f"{differences.mean():.4f} over tokens within e^10 of the most likely"
        )
    assert everywhere < 0.15
