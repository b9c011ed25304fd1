"""Pools of KV block numbers: who holds which is the scheduler's business, what is in them the worker's.

A block is blank, held, or *kept*: given back, with content that may be wanted again. Kept blocks count as free and are
taken when no blank one is left, the longest unused first; until then whoever knows the key of what was in one may
claim it. A *named* block says by its name what is in it, so that several sequences may hold it at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SEGMENT_BITS = 18
"""Block b of pool p in memory that domains share has the number `p << SEGMENT_BITS | b`, so that each has one of its
own. Pool 2·s is the device pool of segment s, pool 2·s + 1 its host pool.
"""

Key = int | bytes
"""What was in a kept block: a sequence's own tokens (its id), or a name."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Blocks in the order of the tokens, the key of each, and how many tokens have their KV in them.

    `memory` is where they lie: nobody else can read them.
    """

    blocks: list[int]
    keys: list[Key]
    tokens: int
    memory: KVMemory


def device_pool(segment: int) -> int:
    """The number of a segment's device pool."""
    return 2 * segment


def host_pool(segment: int) -> int:
    """The number of a segment's host pool."""
    return 2 * segment + 1


class BlockPool:
    """Block numbers `first` … `first` + total − 1; blank blocks are reused last-in first-out, since they are warm in
    cache.
    """

    def __init__(self, total: int, first: int = 0) -> None:
        self.total = total
        self._blank = list(range(first + total - 1, first - 1, -1))
        self._kept: dict[int, Key] = {}
        self._names: dict[int, bytes] = {}
        self._blocks: dict[bytes, int] = {}
        self._sharers: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Blocks nobody holds, kept ones included."""
        return len(self._blank) + len(self._kept)

    @property
    def named(self) -> int:
        """Blocks whose content can be found by name."""
        return len(self._names)

    def take(self, count: int) -> list[int] | None:
        """`count` blocks, or None (and nothing taken) where fewer are free."""
        if count > len(self._blank) + len(self._kept):
            return None
        if count == 0:
            return []
        taken = self._blank[-count:][::-1]
        del self._blank[-count:]
        while len(taken) < count:
            taken.append(self._evict())
        return taken

    def give_back(self, blocks: Sequence[int]) -> None:
        """Return blocks that were taken or claimed; of named ones the content is kept."""
        if not self._names:
            self._blank.extend(reversed(blocks))
            return
        # The last first: the longer a prefix, the sooner it is given up.
        for block in reversed(blocks):
            if block in self._names:
                self._leave(block, self._names[block])
            else:
                self._blank.append(block)

    def keep(self, blocks: Sequence[int], owner: int) -> list[Key]:
        """Return blocks whose content `owner` may want again; the keys with which to claim them."""
        if not self._names:
            self._kept.update(dict.fromkeys(reversed(blocks), owner))
            return [owner] * len(blocks)
        keys: list[Key] = [self._names.get(block, owner) for block in blocks]
        for block, key in zip(reversed(blocks), reversed(keys), strict=True):
            self._leave(block, key)
        return keys

    def has(self, block: int, key: Key) -> bool:
        """Whether `claim` would succeed."""
        return self._kept.get(block) == key or self._names.get(block) == key

    def claim(self, block: int, key: Key) -> bool:
        """Hold a block for what is in it; False where that has been given up."""
        if self._kept.get(block) == key:
            del self._kept[block]
            return True
        if self._names.get(block) == key:
            self._sharers[block] = self._sharers.get(block, 0) + 1
            return True
        return False

    def count_left(self, blocks: Sequence[int], keys: Sequence[Key]) -> int:
        """How many of the blocks, from the first on, `claim` would get."""
        kept, names = self._kept.get, self._names.get
        for position, (block, key) in enumerate(zip(blocks, keys, strict=True)):
            if kept(block) != key and names(block) != key:
                return position
        return len(blocks)

    def name(self, block: int, name: bytes) -> None:
        """Say what is in a held block, from now on and unchanged; ignored where another block has that name."""
        if block not in self._names and name not in self._blocks:
            self._names[block] = name
            self._blocks[name] = block

    def find(self, name: bytes) -> int | None:
        """The block of this name."""
        return self._blocks.get(name)

    def _leave(self, block: int, key: Key) -> None:
        others = self._sharers.pop(block, 0)
        if others == 0:
            self._kept[block] = key
        elif others > 1:
            self._sharers[block] = others - 1

    def _evict(self) -> int:
        block = next(iter(self._kept))
        del self._kept[block]
        if (name := self._names.pop(block, None)) is not None:
            del self._blocks[name]
        return block


class KVMemory:
    """The pools of all domains that can read each other's blocks; a domain that shares none has one of its own."""

    def __init__(self) -> None:
        self.pools: dict[int, BlockPool] = {}

    def pool(self, number: int, total: int) -> BlockPool:
        """A pool, made when it is first asked for. ValueError where it has another size."""
        if number not in self.pools:
            self.pools[number] = BlockPool(total, number << SEGMENT_BITS)
        if self.pools[number].total != total:
            raise ValueError(f"KV pool {number} has {self.pools[number].total} blocks, not {total}")
        return self.pools[number]

    def forget(self, number: int) -> None:
        """What was in a pool is lost; nobody holds a block of it."""
        self.pools.pop(number, None)

    def give_back(self, blocks: list[int]) -> None:
        """Return blocks, each to its pool."""
        for pool, run in self._by_pool(blocks):
            pool.give_back(run)

    def keep(self, blocks: list[int], tokens: int, owner: int) -> Kept:
        """Return a sequence's blocks with the KV of its first `tokens` tokens in them."""
        keys: list[Key] = []
        for pool, run in self._by_pool(blocks):
            keys += pool.keep(run, owner)
        return Kept(blocks, keys, tokens, self)

    def left_of(self, kept: Kept) -> list[int]:
        """Those of the blocks, from the first on, that can still be claimed."""
        left = 0
        for pool, run in self._by_pool(kept.blocks):
            found = pool.count_left(run, kept.keys[left : left + len(run)])
            left += found
            if found < len(run):
                break
        return kept.blocks[:left]

    def claim(self, kept: Kept) -> list[int]:
        """Hold those of the blocks, from the first on, whose content is still there."""
        held = self.left_of(kept)
        position = 0
        for pool, run in self._by_pool(held):
            for block, key in zip(run, kept.keys[position : position + len(run)], strict=True):
                pool.claim(block, key)
            position += len(run)
        return held

    def name(self, block: int, name: bytes) -> None:
        """Say what is in a held block; ignored where another one of its pool has that name."""
        self._pool_of(block).name(block, name)

    def find(self, name: bytes) -> int | None:
        """The block of this name."""
        return next((found for pool in self.pools.values() if (found := pool.find(name)) is not None), None)

    def _pool_of(self, block: int) -> BlockPool:
        return self.pools[block >> SEGMENT_BITS if len(self.pools) > 1 else 0]

    def _by_pool(self, blocks: list[int]) -> list[tuple[BlockPool, list[int]]]:
        """Runs of blocks of one pool, in order."""
        if len(self.pools) == 1:
            return [(next(iter(self.pools.values())), blocks)]
        if blocks and min(blocks) >> SEGMENT_BITS == max(blocks) >> SEGMENT_BITS:
            return [(self._pool_of(blocks[0]), blocks)]
        runs: list[tuple[BlockPool, list[int]]] = []
        numbers = [block >> SEGMENT_BITS for block in blocks]
        begin = 0
        for end in range(1, len(blocks) + 1):
            if end == len(blocks) or numbers[end] != numbers[begin]:
                runs.append((self.pools[numbers[begin]], blocks[begin:end]))
                begin = end
        return runs
