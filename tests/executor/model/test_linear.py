"""Linear gives x · weightᵀ + bias whichever kernel it picks."""

from __future__ import annotations

import pytest
import torch

from superinfer.executor.model.linear import FEW_TOKENS, Linear, packing_works


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 7, 8, 9, 16, FEW_TOKENS, FEW_TOKENS + 1])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 33), (72, 5), (8, 40), (20, 16)])
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32, torch.float16])
def test_float32_products_are_those_of_the_stored_weight(
    tokens: int, inputs: int, outputs: int, stored: torch.dtype
) -> None:
    torch.manual_seed(tokens)
    weight, bias = torch.randn(outputs, inputs).to(stored), torch.randn(outputs)
    x = torch.randn(tokens, inputs)
    expected = x.double() @ weight.double().T
    for with_bias in (None, bias):
        linear = Linear(weight, with_bias, torch.float32, packed=packing_works(torch.float32))
        with torch.inference_mode():
            result = linear(x).double()
        wanted = expected if with_bias is None else expected + bias.double()
        torch.testing.assert_close(result, wanted, atol=1e-5, rtol=1e-5)


def test_bfloat16_compute() -> None:
    weight, x = torch.randn(24, 64).bfloat16(), torch.randn(3, 64).bfloat16()
    linear = Linear(weight, None, torch.bfloat16, packed=packing_works(torch.bfloat16))
    with torch.inference_mode():
        result = linear(x)
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result.float(), x.float() @ weight.float().T, atol=5e-2, rtol=2e-2)
