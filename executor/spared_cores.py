"""The cores of workers that hold bandwidth are left to them: engine, gateway and load generators run on others.

Whoever breaks in on a step costs it its turn and what it had in the caches. The system wakes a thread on an idle core
where there is one; while every worker computes, it takes a holder's as well as any other.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection

from superinfer.contracts.errors import SuperInferError
from superinfer.executor.runtime.thread_affinity import pin_threads

LINGER_S = 5.0
"""A core is spared so long after its worker last held bandwidth: requests come and go."""


class OwnCores:
    """Keeps all threads of this process off cores, as long as others that it may use are left. One for each process.

    What it may use is what its calling thread may when cores begin to be spared.
    """

    def __init__(self) -> None:
        self._usable: frozenset[int] = frozenset()
        self._spared: frozenset[int] = frozenset()

    def keep_off(self, cores: Collection[int]) -> None:
        """Keep off these from now on, and off no others. Where that cannot be, threads stay where they are."""
        spared = frozenset(cores)
        if spared == self._spared:
            return
        # Without a descriptor left, threads cannot be listed; cores may have gone since.
        with contextlib.suppress(SuperInferError, OSError):
            if not self._spared:
                self._usable = frozenset(os.sched_getaffinity(0))
            pin_threads(os.getpid(), sorted(self._usable - spared or self._usable))
            self._spared = spared


class HeldCores:
    """The cores to spare for whoever holds bandwidth, now or a short while ago; ascending."""

    def __init__(self) -> None:
        self.spared: list[int] = []
        self._until_s: dict[int, float] = {}

    def update(self, held: Collection[int], now: float) -> bool:
        """These are held now. Whether the cores to spare have changed."""
        for core in held:
            self._until_s[core] = now + LINGER_S
        self._until_s = {core: until_s for core, until_s in self._until_s.items() if until_s > now}
        before, self.spared = self.spared, sorted(self._until_s)
        return self.spared != before
