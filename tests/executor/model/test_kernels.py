"""Each kernel against a plain torch reference, in both element types and in shapes no vector length divides."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from superinfer.executor.model.architecture import parse_architecture
from superinfer.executor.model.attention import UNLIMITED
from superinfer.executor.model.batch import PrefillChunk
from superinfer.executor.model.decode_attention import decode_attention
from superinfer.executor.model.kernels import LOG2_E, as_numpy, exp2, kernel
from superinfer.executor.model.mlp import silu_mul
from superinfer.executor.model.norm import add_norm, norm
from superinfer.executor.model.panel_prefill import PrefillScratch, panel_prefill, supports
from superinfer.executor.model.prefill_attention import prefill_attention
from superinfer.executor.model.rope import rotate_and_store, rotation_table

DTYPES = [torch.float32, torch.bfloat16]
SHAPES = [(9, 3, 64, 16), (6, 2, 8, 8), (4, 4, 48, 16), (14, 2, 64, 32), (8, 1, 128, 16), (5, 1, 6, 4)]


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    return {"atol": 2e-5, "rtol": 2e-5} if dtype == torch.float32 else {"atol": 3e-2, "rtol": 2e-2}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@kernel
def _exp2_all(values: Any) -> None:
    for i in range(len(values)):
        values[i] = exp2(values[i])


def test_exp2_is_accurate_to_float32_over_its_range() -> None:
    points = np.linspace(-126, 126, 200_001, dtype=np.float32)
    expected = np.exp2(points.astype(np.float64))
    values = points.copy()
    _exp2_all(values)
    assert np.max(np.abs(values / expected - 1)) < 3e-7
    far = np.array([-1e30, -200.0], np.float32)
    _exp2_all(far)
    assert np.all(far < 1e-37)


@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_and_add_norm(dtype: torch.dtype) -> None:
    residual, delta, weight = torch.randn(5, 77), torch.randn(5, 77).to(dtype), torch.randn(77)
    out, plain = torch.empty(5, 77, dtype=dtype), torch.empty(5, 77, dtype=dtype)
    expected_residual = residual + delta.float()
    norm(residual.numpy(), weight.numpy(), np.float32(1e-5), as_numpy(plain))
    torch.testing.assert_close(plain, F.rms_norm(residual, (77,), weight, 1e-5).to(dtype), **tolerance(dtype))
    add_norm(residual.numpy(), as_numpy(delta), weight.numpy(), np.float32(1e-5), as_numpy(out))
    torch.testing.assert_close(residual, expected_residual)
    torch.testing.assert_close(out, F.rms_norm(expected_residual, (77,), weight, 1e-5).to(dtype), **tolerance(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_mul_also_at_extreme_gates(dtype: torch.dtype) -> None:
    gate_up = (torch.randn(3, 2 * 83) * 4).to(dtype)
    gate_up[0, :4] = torch.tensor([-500.0, 500.0, 0.0, -95.0])
    out = torch.empty(3, 83, dtype=dtype)
    silu_mul(as_numpy(gate_up), as_numpy(out))
    gate, up = gate_up.float().chunk(2, dim=-1)
    torch.testing.assert_close(out, (F.silu(gate) * up).to(dtype), **tolerance(dtype))


def paged(keys: torch.Tensor, values: torch.Tensor, block_size: int) -> tuple[torch.Tensor, np.ndarray]:
    """Scatter (tokens, kv_heads, dim) into layer 1 of a pool of garbage; returns pool and block table."""
    tokens, kv_heads, dim = keys.shape
    blocks = -(-tokens // block_size)
    pool = torch.full((blocks + 3, 3, 2, block_size, kv_heads, dim), 1e4, dtype=keys.dtype)
    table = torch.randperm(blocks + 3)[:blocks]
    for t in range(tokens):
        block, slot = table[t // block_size], t % block_size
        pool[block, 1, 0, slot], pool[block, 1, 1, slot] = keys[t], values[t]
    return pool, table.numpy()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [UNLIMITED, 20, 3])
@pytest.mark.parametrize(("heads", "kv_heads", "dim", "block_size"), SHAPES)
def test_decode_attention_reads_paged_blocks_in_place(
    heads: int, kv_heads: int, dim: int, block_size: int, window: int, dtype: torch.dtype
) -> None:
    lengths = [1, block_size, block_size + 1, 3 * block_size - 1, 37]
    queries = torch.randn(len(lengths), heads, dim) * 3
    width = max(-(-n // block_size) for n in lengths)
    pools, tables, expected, base = [], np.zeros((len(lengths), width), np.int64), [], 0
    for i, length in enumerate(lengths):
        keys = torch.randn(length, kv_heads, dim).to(dtype)
        values = torch.randn(length, kv_heads, dim).to(dtype)
        pool, table = paged(keys, values, block_size)
        tables[i, : len(table)] = table + base
        pools.append(pool)
        base += len(pool)
        expected.append(
            F.scaled_dot_product_attention(
                queries[i][:, None],
                keys[-window:].float().transpose(0, 1),
                values[-window:].float().transpose(0, 1),
                enable_gqa=True,
            )[:, 0].reshape(-1)
        )
    out = torch.empty(len(lengths), heads * dim, dtype=dtype)
    scaled = (queries * (LOG2_E / math.sqrt(dim))).numpy()
    scores, sums = np.full((heads, 256), np.nan, np.float32), np.full((heads, dim), np.nan, np.float32)
    pool = as_numpy(torch.cat(pools))
    decode_attention(scaled, pool, 1, tables, np.array(lengths), window, scores, sums, as_numpy(out))
    torch.testing.assert_close(out.float(), torch.stack(expected), **tolerance(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [UNLIMITED, 21])
@pytest.mark.parametrize(("start", "count"), [(0, 1), (0, 40), (17, 23), (64, 150), (5, 129)])
@pytest.mark.parametrize(("heads", "kv_heads", "dim", "block_size"), SHAPES[:3])
def test_prefill_attention_is_causal_from_any_start(
    heads: int, kv_heads: int, dim: int, block_size: int, start: int, count: int, window: int, dtype: torch.dtype
) -> None:
    first_row, context = 3, start + count
    queries = torch.randn(first_row + count, heads, dim)
    keys, values = (torch.randn(context, kv_heads, dim).to(dtype) for _ in range(2))
    pool, table = paged(keys, values, block_size)
    out = torch.zeros(first_row + count + 2, heads * dim, dtype=dtype)
    scaled = queries * (LOG2_E / math.sqrt(dim))
    chunk = PrefillChunk(first_row, start, count, table)
    prefill_attention(scaled, as_numpy(pool), 1, chunk, window, out)
    outs = [out]
    if dtype == torch.float32 and supports(dim):
        outs.append(torch.zeros_like(out))
        panel_prefill(scaled.numpy(), pool.numpy(), 1, chunk, window, outs[1].numpy(), PrefillScratch(context, dim))
    distance = torch.arange(start, context)[:, None] - torch.arange(context)[None, :]
    mask = (distance >= 0) & (distance < window)
    expected = F.scaled_dot_product_attention(
        queries[first_row:].to(dtype).float().transpose(0, 1),
        keys.float().transpose(0, 1),
        values.float().transpose(0, 1),
        attn_mask=mask,
        enable_gqa=True,
    )
    expected = expected.transpose(0, 1).reshape(count, -1)
    for result in outs:
        torch.testing.assert_close(result[first_row : first_row + count].float(), expected, **tolerance(dtype))
        assert not result[:first_row].any()
        assert not result[first_row + count :].any()


@pytest.mark.parametrize("window", [UNLIMITED, 13])
def test_panel_prefill_gives_the_same_bits_however_a_prompt_is_cut(window: int) -> None:
    heads, kv_heads, dim, tokens = 6, 2, 32, 50
    keys, values = (torch.randn(tokens, kv_heads, dim) for _ in range(2))
    pool, table = paged(keys, values, 8)
    queries = torch.randn(tokens, heads, dim).numpy()
    scratch = PrefillScratch(tokens, dim)
    whole, pieces = (np.empty((tokens, heads * dim), np.float32) for _ in range(2))
    panel_prefill(queries, pool.numpy(), 1, PrefillChunk(0, 0, tokens, table), window, whole, scratch)
    for start, end in ((0, 1), (1, 18), (18, 37), (37, tokens)):
        chunk = PrefillChunk(start, start, end - start, table)
        panel_prefill(queries, pool.numpy(), 1, chunk, window, pieces, scratch)
    assert np.array_equal(pieces, whole)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rotation_writes_keys_and_values_to_their_slots_and_nothing_else(dtype: torch.dtype) -> None:
    heads, kv_heads, dim, block_size = 4, 2, 12, 8
    config = {
        "model_type": "llama", "vocab_size": 8, "hidden_size": 48, "intermediate_size": 8,
        "num_hidden_layers": 1, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "rope_theta": 500.0,
    }  # fmt: skip
    table = rotation_table(parse_architecture(config, {}, "test").rope, 64)
    positions, slots = np.array([0, 5, 63]), np.array([9, 30, 16])
    qkv = torch.randn(3, (heads + 2 * kv_heads) * dim).to(dtype)
    pool = torch.full((4, 2, 2, block_size, kv_heads, dim), 7.0, dtype=dtype)
    queries = np.empty((3, heads, dim), np.float32)
    ones = np.ones(dim, np.float32)
    rotate_and_store(
        as_numpy(qkv),
        positions,
        slots,
        table,
        as_numpy(pool),
        1,
        np.float32(0.5),
        queries,
        ones,
        ones,
        np.float32(-1.0),
    )

    angles = torch.tensor(positions)[:, None] / 500.0 ** (torch.arange(0, dim, 2) / dim)
    cosines, sines = angles.cos()[:, None], angles.sin()[:, None]
    parts = qkv.float().view(3, heads + 2 * kv_heads, dim)
    a, b = parts[:, : heads + kv_heads].chunk(2, dim=-1)
    rotated = torch.cat([a * cosines - b * sines, b * cosines + a * sines], dim=-1)
    torch.testing.assert_close(torch.from_numpy(queries), rotated[:, :heads] * 0.5)
    for t, slot in enumerate(slots):
        stored = pool[slot // block_size, 1, :, slot % block_size].float()
        torch.testing.assert_close(stored[0], rotated[t, heads:].to(dtype).float(), **tolerance(dtype))
        torch.testing.assert_close(stored[1], parts[t, heads + kv_heads :])
        pool[slot // block_size, 1, :, slot % block_size] = 7.0
    assert (pool == 7.0).all()
