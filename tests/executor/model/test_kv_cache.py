"""How the pools are sized and that rotation moves exactly the blocks it names."""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
from collections.abc import Iterator

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from superinfer.contracts.errors import ResourceError
from superinfer.executor.kv_cache import PrivateCache, SharedCache, block_bytes, block_shape, plan_device_blocks
from superinfer.executor.kv_memory import KVMemory
from superinfer.executor.kv_pools import close_pools, make_pools
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
    cache = PrivateCache(ARCHITECTURE, device_blocks=1, host_blocks=0, block_size=8, dtype=torch.bfloat16)
    assert block_bytes(ARCHITECTURE, 8, torch.bfloat16) == cache.array[0].nbytes == 8 * 2 * 2 * 2 * 4 * 2


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
        is_host = kv_cache_bytes is None and 0 < host_blocks * bytes_per_block >= available_bytes
        assert ("--host-kv-memory asks" if is_host else "--kv-cache-memory") in refusal
        return
    assert blocks * block_size >= max_model_len
    assert (blocks + host_blocks) * bytes_per_block <= available_bytes
    if kv_cache_bytes is not None:
        assert kv_cache_bytes - bytes_per_block < blocks * bytes_per_block <= kv_cache_bytes


def test_host_memory_that_is_not_there_is_told_by_its_own_flag() -> None:
    with pytest.raises(
        ResourceError, match=r"--host-kv-memory asks for .* only .* is available; lower --host-kv-memory"
    ):
        plan_device_blocks(
            bytes_per_block=1 << 20,
            block_size=16,
            max_model_len=64,
            host_blocks=100,
            kv_cache_bytes=None,
            available_bytes=10 << 20,
        )


def test_rotation_copies_the_named_blocks_and_no_other() -> None:
    cache = PrivateCache(ARCHITECTURE, device_blocks=6, host_blocks=4, block_size=8, dtype=torch.float32)
    cache.array[:] = np.random.default_rng(0).normal(size=cache.array.shape)
    before = cache.array.copy()
    cache.rotate_out([(5, 0), (2, 3)])
    assert np.array_equal(cache.host[0], before[5])
    assert np.array_equal(cache.host[3], before[2])
    assert not cache.host[1:3].any()
    cache.array[:] = 0
    cache.rotate_in([(3, 4), (0, 1)])
    assert np.array_equal(cache.array[4], before[2])
    assert np.array_equal(cache.array[1], before[5])
    assert not cache.array[[0, 2, 3, 5]].any()
    with pytest.raises(IndexError):
        cache.rotate_in([(0, 7)])


def test_saving_slots_leaves_the_others_of_the_saved_block_as_they_were() -> None:
    cache = PrivateCache(ARCHITECTURE, device_blocks=2, host_blocks=2, block_size=8, dtype=torch.float32)
    cache.array[:] = np.random.default_rng(0).normal(size=cache.array.shape)
    cache.save_slots([(1, 0, 0, 3)])
    assert np.array_equal(cache.host[0][:, :, :3], cache.array[1][:, :, :3])
    assert not cache.host[0][:, :, 3:].any()
    cache.array[1][:, :, :3] = 0.0
    cache.save_slots([(1, 0, 3, 8)])
    assert cache.host[0][:, :, :3].all()
    assert np.array_equal(cache.host[0][:, :, 3:], cache.array[1][:, :, 3:])
    assert not cache.host[1].any()


def test_a_pool_takes_no_memory_before_its_blocks_are_used() -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    blocks = 2**30 // block_bytes(ARCHITECTURE, 16, torch.float32)
    cache = PrivateCache(ARCHITECTURE, device_blocks=blocks, host_blocks=0, block_size=16, dtype=torch.float32)
    assert cache.array.nbytes > 1e9
    assert process.memory_info().rss - before < 64 * 2**20
    assert not cache.array[blocks // 2].any()


@pytest.fixture
def pools() -> Iterator[list[int]]:
    files = make_pools(2)
    yield files
    close_pools(files)


def shared_cache(pools: list[int], segment: int) -> SharedCache:
    memory = KVMemory(pools, block_shape(ARCHITECTURE, 8), np.float32)
    return SharedCache(memory, segment, device_blocks=5, host_blocks=3)


def test_a_block_in_shared_memory_is_read_by_its_number_in_every_worker_and_outlives_the_one_that_wrote_it(
    pools: list[int],
) -> None:
    one, other = shared_cache(pools, 0), shared_cache(pools, 1)
    block = other.device_base + 3
    other.array[block] = 7.0
    other.rotate_out([(block, other.host_base + 2)])
    other._memory.close()
    one.reach([block])
    assert (one.array[block] == 7.0).all()
    one.copy([(other.host_base + 2, one.device_base + 1)])
    assert (one.array[one.device_base + 1] == 7.0).all()
    successor = shared_cache(pools, 1)
    assert (successor.array[block] == 7.0).all()
    assert successor._memory.blocks(2) == 6


def test_a_worker_can_write_to_its_own_pools_alone(pools: list[int]) -> None:
    """A stray write ends the worker that makes it; what another domain computed stays as it was."""
    one, other = shared_cache(pools, 0), shared_cache(pools, 1)
    block = other.device_base
    other.array[block] = 7.0
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        one.reach([block])
        one.array[block] = 1.0
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGSEGV
    assert (other.array[block] == 7.0).all()


def test_a_device_pool_that_ends_with_its_worker_leaves_what_was_saved_in_the_host_pool(pools: list[int]) -> None:
    def cache(segment: int) -> SharedCache:
        memory = KVMemory(pools, block_shape(ARCHITECTURE, 8), np.float32)
        return SharedCache(memory, segment, device_blocks=5, host_blocks=3, device_outlives=False)

    one, other = cache(0), cache(1)
    saved, lost = one.device_base + 1, one.device_base + 2
    one.array[[saved, lost]] = 7.0
    one.rotate_out([(saved, one.host_base)])
    one.save_slots([(lost, one.host_base + 1, 2, 4)])
    assert (one.array[one.host_base + 1] == 7.0).sum() == one.array[lost].size // 4
    other.copy([(one.host_base, other.device_base + 4)])
    assert (other.array[other.device_base + 4] == 7.0).all()
    assert other._memory.blocks(0) == 0
    assert not cache(0).array[[saved, lost]].any()


def test_a_pool_keeps_its_size(pools: list[int]) -> None:
    shared_cache(pools, 0)
    with pytest.raises(OSError):
        os.ftruncate(pools[0], 0)


def test_no_file_with_a_name_holds_the_blocks(pools: list[int]) -> None:
    shared_cache(pools, 0)
    assert os.readlink(f"/proc/self/fd/{pools[0]}").startswith("/memfd:superinfer-kv-0 (deleted)")


def test_addresses_that_cannot_be_had_are_refused_in_one_line(pools: list[int]) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + 2**20, before[1]))
    try:
        with pytest.raises(ResourceError, match=r"GiB of addresses .* were refused: Cannot allocate memory"):
            shared_cache(pools, 0)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
