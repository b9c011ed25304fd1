"""Weights of eight bits multiply as their rounded values do, in every kernel, family and batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from superinfer.contracts.errors import ResourceError
from superinfer.executor import model_runner
from superinfer.executor.model.int8_panels import GROUP_INPUTS, int8_panels_size, pack_int8_panels, panel_size
from superinfer.executor.model.linear import Linear
from superinfer.executor.model.packed_weights import PackedWeights, packed_weights_path
from superinfer.executor.model.panels import PANEL_COLUMNS
from superinfer.executor.models.source import ModelSource
from superinfer.executor.profile_model import held_dtypes
from superinfer.profiler.architecture import load_architecture
from superinfer.profiler.static import static_features
from superinfer.scheduler.request import SamplingParams


def rounded(weight: torch.Tensor) -> torch.Tensor:
    """What eight bits leave of a weight (…, outputs, inputs), by plain torch."""
    inputs = weight.shape[-1]
    groups = F.pad(weight.float(), (0, -inputs % GROUP_INPUTS)).unflatten(-1, (-1, GROUP_INPUTS))
    scales = groups.abs().amax(-1, keepdim=True) / 127
    return ((groups / scales.clamp(min=torch.finfo(torch.float32).tiny)).round() * scales).flatten(-2)[..., :inputs]


def int8_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    shape = torch.empty(weight.shape, dtype=torch.int8, device="meta")
    return Linear(shape, bias, torch.float32, packed=False, panels=pack_int8_panels(weight))


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(1, 70),
    inputs=st.sampled_from([4, 20, 32, 64, 72, 100]),
    outputs=st.integers(1, 150),
    stored=st.sampled_from([torch.float32, torch.bfloat16]),
    with_bias=st.booleans(),
)
def test_products_are_those_of_the_rounded_weight(
    tokens: int, inputs: int, outputs: int, stored: torch.dtype, with_bias: bool
) -> None:
    torch.manual_seed(tokens)
    weight, bias = torch.randn(outputs, inputs).to(stored), torch.randn(outputs)
    x = torch.randn(tokens, inputs)
    with torch.inference_mode():
        result = int8_linear(weight, bias if with_bias else None)(x)
    expected = x.double() @ rounded(weight).double().T + (bias.double() if with_bias else 0.0)
    assert result.is_contiguous()
    torch.testing.assert_close(result.double(), expected, atol=2e-5, rtol=1e-5)


def test_a_token_gives_the_same_bits_in_every_batch() -> None:
    torch.manual_seed(0)
    linear, x = int8_linear(torch.randn(80, 100)), torch.randn(70, 100)
    with torch.inference_mode():
        alone = torch.cat([linear(row[None]) for row in x])
        for tokens in range(2, 71):
            assert torch.equal(linear(x[:tokens]), alone[:tokens]), tokens


def test_extremes_zeros_and_signs_are_kept() -> None:
    weight = torch.zeros(17, 64)
    weight[0, 3], weight[0, 40], weight[16, 63] = -5.0, 1e-30, 2.5
    with torch.inference_mode():
        result = int8_linear(weight)(torch.eye(64))
    torch.testing.assert_close(result.T, weight, atol=0.0, rtol=1e-6)


ROUNDED_FAMILIES = ["llama3", "llama-biases", "phi3", "mixtral", "qwen2-moe", "qwen3-moe"]


@pytest.mark.parametrize("kind", ROUNDED_FAMILIES)
def test_logits_are_those_of_transformers_with_rounded_weights(
    kind: str, driver: Any, checkpoint: Callable[..., Path]
) -> None:
    reference = AutoModelForCausalLM.from_pretrained(
        checkpoint(kind), dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    )
    unchanged = ("embed_tokens", "norm", "bias", "mlp.gate.", "shared_expert_gate")
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if not any(part in name for part in unchanged):
                parameter.copy_(rounded(parameter))
    token_ids = torch.randint(3, 160, (70,), generator=torch.Generator().manual_seed(0)).tolist()
    run = driver(kind, dtype="int8")
    run.add(1, token_ids, SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True))
    kept: list[Any] = []
    run.runner._sample = lambda rows, _, __: kept.append(rows.copy())
    for count in (31, 1, 38):
        run.advance(1, count)
        run.run()
    with torch.inference_mode():
        expected = reference(torch.tensor([token_ids])).logits[0, -1]
    torch.testing.assert_close(torch.from_numpy(kept[-1][0]), expected, atol=3e-4, rtol=3e-4)


def test_a_second_start_maps_what_the_first_has_packed_and_gives_the_same_tokens(
    driver: Any, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SUPERINFER_CACHE", str(tmp_path))
    directory, outputs = checkpoint("mixtral"), []
    for _ in range(2):
        run = driver(directory, dtype="int8")
        run.add(1, [5, 6, 7], SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True))
        outputs.append(run.finish(1))
        monkeypatch.setattr("superinfer.executor.model.layer_builder.pack_int8_panels", None)
    assert outputs[0] == outputs[1]
    kept = PackedWeights(packed_weights_path(directory, torch.int8))
    assert kept.get("head", int8_panels_size(160, 48), torch.int8) is not None
    assert packed_weights_path(directory, torch.int8) != packed_weights_path(directory, torch.float32)


def test_the_cache_stays_float32_and_half_of_a_bfloat16_models_memory_is_enough(
    driver: Any, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert driver("llama3", dtype="int8").runner.dtype == torch.float32
    shape = driver("llama3").runner.architecture
    looked_up = shape.vocab_size * shape.hidden_size
    monkeypatch.setattr(model_runner, "available_memory_bytes", lambda: int(1.125 * shape.parameters) + looked_up - 1)
    with pytest.raises(ResourceError, match=r"weights need .* as int8"):
        driver("llama3", dtype="int8")


def test_a_profile_counts_weights_with_their_scales_and_a_float32_cache(checkpoint: Callable[..., Path]) -> None:
    source = ModelSource(name="tiny", directory=checkpoint("llama3"), has_weights=True)
    architecture = load_architecture(source.directory)
    dtype, held = held_dtypes(source, "int8")
    eight = static_features(architecture, dtype, weight_dtype=held, decode_context=100)
    full = static_features(architecture, "float32", decode_context=100)
    per_weight = panel_size(GROUP_INPUTS) / (PANEL_COLUMNS * GROUP_INPUTS)
    assert eight.memory.weight_bytes == int(per_weight * architecture.parameters)
    assert eight.memory.kv_bytes_per_token == full.memory.kv_bytes_per_token
    saved = full.bandwidth.decode_read_bytes_per_token - eight.bandwidth.decode_read_bytes_per_token
    read = architecture.parameters - architecture.head_weights + architecture.hidden_size
    assert saved == pytest.approx((4 - per_weight) * read)
