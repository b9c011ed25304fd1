"""The step shapes that a profile measures: decodes of some contexts, prefill chunks, and both together.

The most telling points come first, so that a budget that ends early costs detail and no whole region. Small token
counts are dense: there a step is bound by reading weights, and a kernel's tiles make the curve of the linear layers
bend.
"""

from __future__ import annotations

from dataclasses import dataclass

from superinfer.profiler.latency_model import StepShape


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """`count` prompt tokens after `start` cached ones; `samples` if they end the prompt."""

    count: int
    start: int = 0
    samples: bool = False


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One step: a decoding sequence for each of `contexts`, its number of cached tokens, and prefill chunks."""

    contexts: tuple[int, ...] = ()
    chunks: tuple[PrefillChunk, ...] = ()

    @property
    def name(self) -> str:
        """A short description for progress and feature file."""
        parts = []
        if self.contexts:
            low, high = min(self.contexts), max(self.contexts)
            parts.append(f"decode {len(self.contexts)} x {low}" + (f" to {high}" if high > low else ""))
        for chunk in self.chunks:
            parts.append(f"prefill {chunk.count} after {chunk.start}" + (" + sample" if chunk.samples else ""))
        return ", ".join(parts)

    @property
    def shape(self) -> StepShape:
        """The step as the latency model sees it."""
        shape = StepShape()
        for context in self.contexts:
            shape.add_decode(context)
        for chunk in self.chunks:
            shape.add_prefill(chunk.start, chunk.count, samples=chunk.samples)
        return shape

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence after the step."""
        return max([context + 1 for context in self.contexts] + [chunk.start + chunk.count for chunk in self.chunks])

    def blocks(self, block_size: int) -> int:
        """KV blocks that all sequences of the step occupy."""
        decode_blocks = sum(-(-(context + 1) // block_size) for context in self.contexts)
        return decode_blocks + sum(-(-(chunk.start + chunk.count) // block_size) for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class SweepLimits:
    """What the executor can hold."""

    max_step_tokens: int
    max_model_len: int
    kv_blocks: int
    block_size: int

    def allow(self, point: SweepPoint) -> bool:
        """Whether the step fits; a sequence keeps room for the token sampled next."""
        return (
            point.shape.tokens <= self.max_step_tokens
            and point.longest < self.max_model_len
            and point.blocks(self.block_size) <= self.kv_blocks
        )


def _decode(decodes: int, context: int) -> SweepPoint:
    return SweepPoint(contexts=(context,) * decodes)


def _prefill(count: int, start: int = 0, *, samples: bool = False) -> SweepPoint:
    return SweepPoint(chunks=(PrefillChunk(count, start, samples),))


def _mixed(decodes: int, context: int, count: int, start: int = 0, *, samples: bool = False) -> SweepPoint:
    return SweepPoint((context,) * decodes, (PrefillChunk(count, start, samples),))


def _prompts(*counts: int, decodes: int = 0, context: int = 0) -> SweepPoint:
    """Several whole prompts in one step."""
    return SweepPoint((context,) * decodes, tuple(PrefillChunk(count, 0, True) for count in counts))


ALL_POINTS = (
    _decode(1, 128),
    _prefill(64, samples=True),
    _decode(8, 128),
    _prefill(256),
    _mixed(4, 256, 32),
    _decode(32, 64),
    _prefill(16, 256, samples=True),
    _decode(1, 1000),
    _prefill(128, samples=True),
    _decode(16, 256),
    _mixed(16, 128, 64, 128, samples=True),
    _decode(4, 512),
    _prefill(32, 512),
    _decode(2, 128),
    _decode(8, 1000),
    _mixed(8, 256, 128, 256),
    _prefill(32, samples=True),
    _decode(24, 400),
    _prompts(48, 48),
    _decode(5, 200),
    _prefill(128, 512),
    _decode(12, 128),
    _decode(1, 16),
    _mixed(31, 128, 96, samples=True),
    _decode(3, 300),
    _prefill(8, 64),
    _decode(6, 900),
    _prefill(256, 256, samples=True),
    _decode(20, 200),
    _mixed(1, 512, 200),
    _prompts(16, 24, 32, decodes=8, context=200),
    _decode(4, 64),
    _decode(7, 128),
    _prefill(96, 128),
    _decode(10, 128),
    _mixed(24, 300, 32, 64),
    _decode(14, 100),
    _prefill(16, samples=True),
    _decode(2, 700),
    _decode(28, 128),
    _prefill(48),
    _decode(6, 64),
    _prefill(192, 64, samples=True),
    _decode(9, 300),
    _decode(12, 700),
    _prefill(16, 700),
    _decode(36, 100),
    _mixed(2, 100, 24, 400),
    _decode(18, 64),
    _decode(48, 128),
    _mixed(12, 200, 12, samples=True),
    _prefill(4, 128),
    _prefill(24, 300),
    _decode(32, 512),
    _prompts(12, 12, 12, 12),
    _decode(64, 64),
    _prefill(64, 900),
    _mixed(40, 100, 16, 500),
    _decode(32, 1000),
    _prefill(256, 700),
)


def sweep_points(limits: SweepLimits) -> list[SweepPoint]:
    """All points that the executor can hold, the most telling ones first."""
    return [point for point in ALL_POINTS if limits.allow(point)]
