"""Every family of decoders against transformers' own forward pass, on tiny random weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from superinfer.executor.model import precision
from superinfer.scheduler.request import SamplingParams

OUTPUT = 8


def prompt(length: int, seed: int = 0) -> list[int]:
    return torch.randint(3, 160, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def greedy(max_tokens: int = OUTPUT) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)


class Reference:
    """transformers on the same checkpoint, with plain attention, in float32."""

    def __init__(self, directory: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
        )

    def logits(self, token_ids: list[int]) -> torch.Tensor:
        """Logits after the last token."""
        with torch.inference_mode():
            return self._model(torch.tensor([token_ids])).logits[0, -1]

    def output(self, token_ids: list[int], count: int = OUTPUT) -> list[int]:
        """Greedy tokens, the whole sequence computed anew for each."""
        tokens = list(token_ids)
        for _ in range(count):
            tokens.append(int(self.logits(tokens).argmax()))
        return tokens[len(token_ids) :]


def last_logits(run: Any, sequence_id: int, chunk: int) -> torch.Tensor:
    """Our logits after a prompt that is computed in chunks."""
    kept: list[Any] = []
    run.runner._sample = lambda rows, _, __: kept.append(rows.copy())
    while run.computed[sequence_id] < run.lengths[sequence_id]:
        run.advance(sequence_id, chunk)
        run.run()
    return torch.from_numpy(kept[-1][0])


def test_logits_after_chunks_and_greedy_tokens_in_mixed_batches_equal_transformers(
    family: str, driver: Any, checkpoint: Callable[..., Path]
) -> None:
    reference = Reference(checkpoint(family))
    run = driver(family)
    run.add(1, prompt(90), greedy())
    torch.testing.assert_close(last_logits(run, 1, 37), reference.logits(prompt(90)), atol=3e-4, rtol=3e-4)

    # Three sequences that join while others decode. All are longer than LongRoPE's original context, where
    # transformers would change the frequencies within a sequence.
    prompts = {i: prompt(66 + 15 * i, seed=i) for i in range(3)}
    run = driver(family)
    for i, token_ids in prompts.items():
        run.add(i, token_ids, greedy())
        for _ in range(3):
            for j in range(i + 1):
                if run.finishes[j] is None:
                    run.advance(j, 40)
            run.run()
    for i in prompts:
        while run.finishes[i] is None:
            for j in prompts:
                if run.finishes[j] is None:
                    run.advance(j)
            run.run()
    assert run.tokens == {i: reference.output(token_ids) for i, token_ids in prompts.items()}


def test_long_rope_takes_the_short_factors_where_no_sequence_is_longer_than_the_original_context(
    driver: Any, checkpoint: Callable[..., Path]
) -> None:
    reference = Reference(checkpoint("phi3-long"))
    run = driver("phi3-long", max_model_len=64)
    run.add(1, prompt(40), greedy())
    assert run.finish(1) == reference.output(prompt(40))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_checkpoints_compute_with_the_values_they_store(
    dtype: str, driver: Any, checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    model = AutoModelForCausalLM.from_pretrained(checkpoint("qwen3-moe"), dtype=getattr(torch, dtype))
    model.save_pretrained(tmp_path)
    run = driver(tmp_path)
    run.add(1, prompt(50), greedy())
    torch.testing.assert_close(last_logits(run, 1, 50), Reference(tmp_path).logits(prompt(50)), atol=3e-4, rtol=3e-4)


@pytest.mark.parametrize("in_hardware", [True, False])
@pytest.mark.parametrize("kind", ["mistral-window", "phi3-long", "qwen3", "qwen2-moe"])
def test_bfloat16_stays_close_to_float32_computed_in_either_type(
    kind: str, in_hardware: bool, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "bfloat16_in_hardware", lambda: in_hardware)
    outputs = []
    for dtype in ("float32", "bfloat16"):
        run = driver(kind, dtype=dtype)
        run.add(1, prompt(60), greedy())
        outputs.append(last_logits(run, 1, 25).log_softmax(-1))
    assert 0 < (outputs[0] - outputs[1]).abs().mean() < 0.1


@pytest.mark.parametrize("kind", ["phi3", "qwen2", "qwen2-moe"])
def test_sharded_weights_give_the_same_tokens(kind: str, driver: Any, checkpoint: Callable[..., Path]) -> None:
    sharded = checkpoint(kind, max_shard_size="60KB")
    assert (sharded / "model.safetensors.index.json").exists()
    outputs = []
    for directory in (sharded, checkpoint(kind)):
        run = driver(directory)
        run.add(1, prompt(20), greedy())
        outputs.append(run.finish(1))
    assert outputs[0] == outputs[1]


def test_published_names_of_expert_counts_are_read_too(
    driver: Any, checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    directory = tmp_path / "model"
    shutil.copytree(checkpoint("qwen3-moe"), directory)
    config = json.loads((directory / "config.json").read_text())
    config["num_experts"] = config.pop("num_local_experts")
    (directory / "config.json").write_text(json.dumps(config))
    outputs = []
    for model in (directory, checkpoint("qwen3-moe")):
        run = driver(model)
        run.add(1, prompt(20), greedy())
        outputs.append(run.finish(1))
    assert outputs[0] == outputs[1]
