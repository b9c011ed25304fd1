"""Linear gives x · weightᵀ + bias whichever kernel it picks, and a token's result whatever it is batched with."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from superinfer.executor.model.linear import FEW_TOKENS, PARTS, Linear, packing_works
from superinfer.executor.model.panels import PANEL_COLUMNS, pack_panels

STORED = [torch.bfloat16, torch.float32, torch.float16]


def apply(linear: Linear, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return linear(x)


def check(
    tokens: int, inputs: int, outputs: int, stored: torch.dtype, with_bias: bool, *, packed: bool, panels_only: bool
) -> None:
    torch.manual_seed(tokens)
    weight, bias = torch.randn(outputs, inputs).to(stored), torch.randn(outputs)
    x = torch.randn(tokens, inputs)
    linear = Linear(weight, bias if with_bias else None, torch.float32, packed=packed, panels_only=panels_only)
    expected = x.double() @ weight.double().T + (bias.double() if with_bias else 0.0)
    result = apply(linear, x)
    assert result.shape == expected.shape
    assert result.is_contiguous()
    torch.testing.assert_close(result.double(), expected, atol=2e-5, rtol=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(1, 40),
    inputs=st.sampled_from([4, 20, 30, 64, 72]),
    outputs=st.integers(1, 150),
    stored=st.sampled_from(STORED),
    with_bias=st.booleans(),
)
def test_panel_products_are_those_of_the_stored_weight(
    tokens: int, inputs: int, outputs: int, stored: torch.dtype, with_bias: bool
) -> None:
    check(tokens, inputs, outputs, stored, with_bias, packed=False, panels_only=True)


@pytest.mark.parametrize("tokens", [1, FEW_TOKENS, FEW_TOKENS + 1])
@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("packed", [False, packing_works(torch.float32)])
def test_so_are_those_of_cpus_on_which_large_steps_go_to_another_kernel(
    tokens: int, stored: torch.dtype, packed: bool
) -> None:
    check(tokens, 72, 33, stored, True, packed=packed, panels_only=False)


@pytest.mark.parametrize("stored", STORED[:2])
def test_a_token_gives_the_same_bits_in_every_batch(stored: torch.dtype) -> None:
    torch.manual_seed(0)
    linear = Linear(torch.randn(80, 64).to(stored), None, torch.float32, packed=False, panels_only=True)
    x = torch.randn(40, 64)
    alone = torch.cat([apply(linear, row[None]) for row in x])
    for tokens in range(2, 41):
        assert torch.equal(apply(linear, x[:tokens]), alone[:tokens]), tokens


@pytest.mark.parametrize("stored", STORED[:2])
def test_panels_hold_every_weight_once_and_zeros_elsewhere(stored: torch.dtype) -> None:
    weight = torch.arange(1, 1 + 70 * 8).view(70, 8).to(stored)
    packed = pack_panels(weight)
    assert packed.numel() == 128 * 8
    assert packed.dtype == stored
    wanted = torch.cat([weight.flatten(), torch.zeros(58 * 8, dtype=stored)])
    assert torch.equal(packed.sort().values, wanted.sort().values)
    assert set(packed[: PANEL_COLUMNS * 8].tolist()) == set(weight[:PANEL_COLUMNS].flatten().tolist())


def test_a_kept_output_serves_larger_and_smaller_calls() -> None:
    weight = torch.randn(70, 8)
    linear = Linear(weight, None, torch.float32, packed=False, panels_only=True, keep_output=True)
    for tokens in (3, 9, 2):
        x = torch.randn(tokens, 8)
        torch.testing.assert_close(apply(linear, x), x @ weight.T, atol=2e-5, rtol=1e-5)


def test_bfloat16_compute() -> None:
    weight, x = torch.randn(24, 64).bfloat16(), torch.randn(3, 64).bfloat16()
    linear = Linear(weight, None, torch.bfloat16, packed=packing_works(torch.bfloat16))
    result = apply(linear, x)
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result.float(), x.float() @ weight.float().T, atol=5e-2, rtol=2e-2)


@pytest.mark.parametrize("outputs", [40, 2000])
@pytest.mark.parametrize("tokens", [1, 7, 40])
@pytest.mark.parametrize("panels_only", [True, False])
def test_whoever_is_told_how_far_a_layer_is_gets_the_same_result(tokens: int, outputs: int, panels_only: bool) -> None:
    torch.manual_seed(0)
    linear = Linear(
        torch.randn(outputs, 64).bfloat16(),
        torch.randn(outputs),
        torch.float32,
        packed=packing_works(torch.float32),
        panels_only=panels_only,
    )
    x, shares = torch.randn(tokens, 64), list[float]()
    with torch.inference_mode():
        assert torch.equal(linear(x, shares.append), linear(x))
    assert sum(shares) == pytest.approx(1.0)
    if outputs == 2000 and (panels_only or tokens <= FEW_TOKENS):
        assert len(shares) == PARTS
