"""A pool of KV block numbers: who holds which is the scheduler's business, what is in them the worker's."""

from __future__ import annotations


class BlockPool:
    """Block numbers 0 … total − 1; freed blocks are reused last-in first-out, since they are warm in cache."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))

    @property
    def free(self) -> int:
        """Blocks nobody holds."""
        return len(self._free)

    def take(self, count: int) -> list[int] | None:
        """`count` blocks, or None (and nothing taken) where fewer are free."""
        if count > len(self._free):
            return None
        if count == 0:
            return []
        taken = self._free[-count:][::-1]
        del self._free[-count:]
        return taken

    def give_back(self, blocks: list[int]) -> None:
        """Return blocks that were taken."""
        self._free.extend(reversed(blocks))
