"""ModelRunner on tiny models: tokens, finishes, rotation, continuation, memory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from superinfer.contracts.errors import ModelError, ResourceError
from superinfer.executor.config import DType, WorkerConfig
from superinfer.executor.model_runner import ModelRunner, weight_dtype
from superinfer.executor.profile_model import resolve_dtype
from superinfer.scheduler.request import SamplingParams


def prompt(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 160, (length,), generator=generator).tolist()


def greedy(max_tokens: int, **options: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, **{"ignore_eos": True, **options})


def test_mixed_steps_give_each_sequence_what_it_gets_alone(driver: Any) -> None:
    alone = {}
    for i in range(5):
        run = driver()
        run.add(i, prompt(5 + 31 * i, seed=i), greedy(10))
        alone[i] = run.finish(i)
    run = driver()
    joined: list[int] = []
    for round_ in range(60):
        if round_ % 2 == 0 and len(joined) < 5:
            i = len(joined)
            joined.append(i)
            run.add(i, prompt(5 + 31 * i, seed=i), greedy(10))
        for i in joined:
            if run.finishes[i] is None:
                run.advance(i, 16)
        run.run()
    assert run.tokens == alone


def test_rotated_sequences_continue_unchanged_while_their_blocks_are_reused(driver: Any) -> None:
    run = driver(kv_cache_bytes=64 * 8 * 2 * 2 * 2 * 8 * 4)
    run.add(1, prompt(60), greedy(12))
    expected = run.finish(1)
    run.forget(1)
    run.add(2, prompt(60), greedy(12))
    for _ in range(4):
        run.advance(2)
        run.run()
    run.rotate_out(2)
    run.add(3, prompt(200, seed=9), greedy(40))
    run.finish(3)
    run.forget(3)
    run.rotate_in(2)
    assert run.finish(2) == expected


def test_end_of_sequence_and_stop_tokens_end_with_stop_and_max_tokens_with_length(driver: Any) -> None:
    run = driver()
    run.add(1, prompt(30), greedy(6))
    output = run.finish(1)
    assert run.finishes[1] == "length"
    assert len(output) == 6
    stop = output[3]
    run.add(2, prompt(30), greedy(6, stop_token_ids=(stop,)))
    assert run.finish(2) == output[: output.index(stop) + 1]
    assert run.finishes[2] == "stop"


def test_eos_of_the_generation_config_ends_unless_ignored(
    driver: Any, checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    run = driver()
    run.add(1, prompt(30), greedy(6))
    output = run.finish(1)
    directory = tmp_path / "model"
    shutil.copytree(checkpoint("llama"), directory)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [151, output[2]]}))
    run = driver(directory)
    run.add(1, prompt(30), greedy(6, ignore_eos=False))
    assert run.finish(1) == output[: output.index(output[2]) + 1]
    assert run.finishes[1] == "stop"
    run.add(2, prompt(30), greedy(6))
    assert run.finish(2) == output


def test_a_step_planned_for_a_finished_sequence_is_skipped(driver: Any) -> None:
    run = driver()
    run.add(1, prompt(10), greedy(1))
    run.add(2, prompt(12), greedy(5))
    run.advance(1)
    run.advance(2)
    assert {token.finish for token in run.run()} == {"length", None}
    run.plan.decodes.append(1)
    run.advance(2)
    assert [(token.sequence_id, token.output_index) for token in run.run()] == [(2, 1)]


@pytest.mark.parametrize("committed", [1, 5])
def test_a_sequence_moved_to_another_worker_goes_on_with_the_same_tokens(driver: Any, committed: int) -> None:
    params = SamplingParams(max_tokens=10, temperature=0.9, top_k=40, seed=5, frequency_penalty=0.5, ignore_eos=True)
    run = driver()
    run.add(1, prompt(33), params)
    whole = run.finish(1)
    survivor = driver()
    survivor.add(7, prompt(33), params, committed=whole[:committed])
    assert survivor.finish(7, chunk=16) == whole
    assert survivor.finishes[7] == "length"


def test_the_models_own_length_caps_max_model_len_and_output(driver: Any) -> None:
    run = driver(max_model_len=100_000)
    assert run.runner.max_model_len == 256
    run.add(1, prompt(250), greedy(100))
    assert len(run.finish(1)) == 6
    assert run.finishes[1] == "length"


def test_random_weights_need_only_a_config_and_repeat(
    driver: Any, checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    shutil.copy(checkpoint("llama3") / "config.json", tmp_path)
    outputs = []
    for _ in range(2):
        run = driver(tmp_path, random_weights=True)
        run.add(1, prompt(9), greedy(8))
        outputs.append(run.finish(1))
    assert outputs[0] == outputs[1]
    with pytest.raises(ModelError, match="--random-weights"):
        driver(tmp_path)


def test_bfloat16_stays_close_to_float32(driver: Any) -> None:
    outputs = []
    for dtype in ("float32", "bfloat16"):
        run = driver(dtype=dtype)
        run.add(1, prompt(40), greedy(1))
        run.advance(1)
        logits = []
        run.runner._sample = lambda rows, _, __, kept=logits: kept.append(rows.copy())
        run.run()
        outputs.append(torch.from_numpy(logits[0]).log_softmax(-1))
    difference = (outputs[0] - outputs[1]).abs().mean()
    assert 0 < difference < 0.05


def test_too_little_kv_memory_is_refused_with_figures_before_it_is_taken(driver: Any) -> None:
    with pytest.raises(ResourceError, match=r"one sequence of 256 tokens needs 256\.0|--kv-cache-memory"):
        driver(kv_cache_bytes=1000)
    with pytest.raises(ResourceError, match=r"asks for 1048576\.00 GiB.*is available"):
        driver(kv_cache_bytes=2**50)


def test_weights_larger_than_memory_are_refused_before_loading(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    config = json.loads((checkpoint("llama") / "config.json").read_text())
    config.update(num_hidden_layers=100_000, hidden_size=48 * 256, intermediate_size=80 * 256)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ResourceError, match="weights need"):
        ModelRunner(WorkerConfig(domain_id="d", model_dir=str(tmp_path), random_weights=True))


@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16", "int8"])
def test_the_precision_is_the_same_whether_asked_with_torch_or_without(dtype: DType) -> None:
    assert resolve_dtype(dtype) == str(weight_dtype(dtype)).removeprefix("torch.")


def test_a_cpu_says_that_it_multiplies_bfloat16(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor: 0\nflags\t\t: fpu avx512f avx512_bf16\n")
    assert resolve_dtype("auto", tmp_path / "cpuinfo") == "bfloat16"
    assert resolve_dtype("auto", tmp_path / "absent") == "float32"
