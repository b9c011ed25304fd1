"""How the pools are sized and that rotation moves exactly the blocks it names."""

from __future__ import annotations

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from superinfer.contracts.errors import ResourceError
from superinfer.executor.kv_cache import KVCache, block_bytes, plan_device_blocks
from superinfer.executor.model.architecture import parse_architecture

ARCHITECTURE = parse_architecture(
    {
        "model_type": "llama", "vocab_size": 8, "hidden_size": 16, "intermediate_size": 8,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    },
    {},
    "test",
)  # fmt: skip


def test_a_block_counts_keys_and_values_of_all_layers() -> None:
    cache = KVCache(ARCHITECTURE, device_blocks=1, host_blocks=0, block_size=8, dtype=torch.bfloat16)
    assert block_bytes(ARCHITECTURE, 8, torch.bfloat16) == cache.device.nbytes == 8 * 2 * 2 * 2 * 4 * 2


@given(
    st.integers(1, 10**6), st.integers(1, 64), st.integers(1, 5000), st.integers(0, 100),
    st.none() | st.integers(0, 10**11), st.integers(0, 10**11),
)  # fmt: skip
def test_the_pools_fit_the_memory_and_hold_one_sequence_or_are_refused(
    bytes_per_block: int, block_size: int, max_model_len: int, host_blocks: int,
    kv_cache_bytes: int | None, available_bytes: int,
) -> None:  # fmt: skip
    try:
        blocks = plan_device_blocks(
            bytes_per_block=bytes_per_block,
            block_size=block_size,
            max_model_len=max_model_len,
            host_blocks=host_blocks,
            kv_cache_bytes=kv_cache_bytes,
            available_bytes=available_bytes,
        )
    except ResourceError as error:
        refusal = str(error)
        blocks = None
    if blocks is None:
        assert "--kv-cache-memory" in refusal
        return
    assert blocks * block_size >= max_model_len
    assert (blocks + host_blocks) * bytes_per_block <= available_bytes
    if kv_cache_bytes is not None:
        assert kv_cache_bytes - bytes_per_block < blocks * bytes_per_block <= kv_cache_bytes


def test_rotation_copies_the_named_blocks_and_no_other() -> None:
    cache = KVCache(ARCHITECTURE, device_blocks=6, host_blocks=4, block_size=8, dtype=torch.float32)
    cache.device.normal_()
    before = cache.device.clone()
    cache.rotate_out([(5, 0), (2, 3)])
    assert torch.equal(cache.host[0], before[5])
    assert torch.equal(cache.host[3], before[2])
    assert not cache.host[1:3].any()
    cache.device.zero_()
    cache.rotate_in([(3, 4), (0, 1)])
    assert torch.equal(cache.device[4], before[2])
    assert torch.equal(cache.device[1], before[5])
    assert not cache.device[[0, 2, 3, 5]].any()
    with pytest.raises(IndexError):
        cache.rotate_in([(0, 6)])


def test_a_pool_takes_no_memory_before_its_blocks_are_used() -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    blocks = 2**30 // block_bytes(ARCHITECTURE, 16, torch.float32)
    cache = KVCache(ARCHITECTURE, device_blocks=blocks, host_blocks=0, block_size=16, dtype=torch.float32)
    assert cache.device.nbytes > 1e9
    assert process.memory_info().rss - before < 64 * 2**20
    assert not cache.device[blocks // 2].any()
