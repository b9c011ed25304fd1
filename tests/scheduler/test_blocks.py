"""Block pools against a plain model: who holds what, what can still be claimed, and that no block is lost."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from superinfer.scheduler.blocks import BlockPool, Key, KVMemory

TOTAL = 8


class PoolMachine(RuleBasedStateMachine):
    """`content` is what was last put into a block by whoever took it; a claim must find just that."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(TOTAL, first=100)
        self.holders: list[list[int]] = []
        self.kept: list[tuple[int, Key, int]] = []
        self.content: dict[int, int] = {}
        self.stamp = 0

    @rule(count=st.integers(0, TOTAL + 1))
    def take(self, count: int) -> None:
        held = {block for blocks in self.holders for block in blocks}
        taken = self.pool.take(count)
        assert (taken is None) == (count > TOTAL - len(held))
        if taken:
            assert not held & set(taken)
            assert len(set(taken)) == count
            for block in taken:
                self.stamp += 1
                self.content[block] = self.stamp
            self.holders.append(taken)

    @rule(data=st.data(), keeps=st.booleans())
    def leave(self, data: st.DataObject, keeps: bool) -> None:
        if not self.holders:
            return
        blocks = self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1)))
        if keeps:
            self.stamp += 1
            keys = self.pool.keep(blocks, self.stamp)
            self.kept += [(block, key, self.content[block]) for block, key in zip(blocks, keys, strict=True)]
        else:
            self.pool.give_back(blocks)

    @rule(data=st.data())
    def name(self, data: st.DataObject) -> None:
        held = sorted({block for blocks in self.holders for block in blocks})
        if held:
            block = data.draw(st.sampled_from(held))
            self.pool.name(block, str(self.content[block]).encode())

    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        if not self.kept:
            return
        block, key, content = self.kept.pop(data.draw(st.integers(0, len(self.kept) - 1)))
        has = self.pool.has(block, key)
        assert self.pool.claim(block, key) == has
        if has:
            assert self.content[block] == content
            self.holders.append([block])

    @rule(stamp=st.integers(1, 60))
    def find(self, stamp: int) -> None:
        name = str(stamp).encode()
        block = self.pool.find(name)
        if block is not None:
            assert self.content[block] == stamp
            assert self.pool.claim(block, name)
            self.holders.append([block])

    @invariant()
    def every_block_is_free_or_held(self) -> None:
        held = {block for blocks in self.holders for block in blocks}
        assert self.pool.free + len(held) == TOTAL


PoolMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=30)
TestPool = PoolMachine.TestCase


def test_kept_blocks_are_taken_last_and_the_longest_unused_first() -> None:
    pool = BlockPool(4)
    first, second = pool.take(1), pool.take(2)
    assert first is not None
    assert second is not None
    (key,) = pool.keep(first, owner=1)
    keys = pool.keep(second, owner=2)
    pool.take(1)
    assert pool.has(first[0], key)
    pool.take(1)
    assert not pool.has(first[0], key)
    # Of one sequence the end goes first: a prefix is of use without it.
    pool.take(1)
    assert pool.has(second[0], keys[0])
    assert not pool.has(second[1], keys[1])


def test_a_named_block_has_several_holders_and_is_free_when_the_last_has_left() -> None:
    memory = KVMemory()
    memory.pool(0, 2)
    other = memory.pool(2, 2)
    (block,) = other.take(1) or []
    memory.name(block, b"prefix")
    assert memory.find(b"prefix") == block
    assert other.claim(block, b"prefix")
    memory.give_back([block])
    assert other.free == 1
    memory.give_back([block])
    assert other.free == 2
    assert other.claim(block, b"prefix")
