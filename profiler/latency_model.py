"""The latency model: how long one engine step takes, and what follows from it for a whole request.

A step's time is physical: a launch cost, the linear layers (bound by weight bytes when few tokens share the step, by
arithmetic when many do), attention over the cached context of the decodes, attention within prefill chunks, and the
output head, whose weights are read where any row is sampled and which each row then passes. Every constant is fitted to
measured steps (`superinfer.profiler.fit`). Plain Python, no clock, no torch: the scheduler calls it many times in one
plan.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from dataclasses import dataclass, field

CORRECTION_GAIN = 0.25
"""Weight of the last step in the correction: a device's speed changes within seconds, some ten steps."""

FEW_PROMPT_TOKENS, MANY_PROMPT_TOKENS = 8.0, 128.0
FEW_DECODES, MANY_DECODES = 4.0, 16.0
"""Between these the linear layers' slope says what one more token costs."""
UPPER_QUANTILE = 0.9
UPPER_GAIN = 0.01
"""How far one step moves the upper ratio, at most."""


@dataclass(slots=True)
class StepShape:
    """What a step holds, as far as its time depends on it.

    `tokens` counts every token through the linear layers (decodes and prefill); `decodes` the decoding
    sequences; `decode_context` the cached tokens they attend to, summed; `prefill_pairs` the (query, key)
    pairs of all prefill chunks, count · (start + (count + 1) / 2) each; `rows` the rows through the output
    head; `chunks` the prefill chunks.
    """

    tokens: int = 0
    decodes: int = 0
    decode_context: int = 0
    prefill_pairs: float = 0.0
    rows: int = 0
    chunks: int = 0

    def add_decode(self, context: int) -> None:
        """Add one decoding sequence with `context` cached tokens."""
        self.tokens += 1
        self.decodes += 1
        self.decode_context += context
        self.rows += 1

    def add_prefill(self, start: int, count: int, *, samples: bool) -> None:
        """Add a prefill chunk of `count` tokens after `start` cached ones; `samples` if it ends the prompt."""
        self.tokens += count
        self.prefill_pairs += count * (start + (count + 1) / 2)
        self.chunks += 1
        self.rows += samples

    def copy(self) -> StepShape:
        """An independent copy."""
        return StepShape(self.tokens, self.decodes, self.decode_context, self.prefill_pairs, self.rows, self.chunks)


@dataclass(slots=True)
class LatencyModel:
    """Fitted constants of one (model, device, precision); all in seconds.

    `linear_points` is the time of all linear layers at given token counts, (tokens, seconds), ascending;
    between points it is interpolated, beyond the last the last slope goes on. `residual_quantiles` maps a
    quantile to the ratio measured / predicted there. `correction` is the online factor, 1.0 until steps have
    been observed; `upper` follows the ratio that 90 % of the steps stay below, and begins at the residuals' own.
    """

    launch_s: float
    linear_points: list[tuple[float, float]]
    decode_context_s: float
    decode_s: float
    prefill_pair_s: float
    chunk_s: float
    row_s: float
    head_s: float = 0.0
    residual_quantiles: dict[float, float] = field(default_factory=lambda: {0.5: 1.0, 0.9: 1.1, 0.99: 1.3})
    correction: float = 1.0
    correction_gain: float = CORRECTION_GAIN
    upper: float = 0.0
    _tokens: list[float] = field(init=False, repr=False)
    _chunk_rise_s: float = field(init=False, repr=False)
    _batch_rise_s: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.linear_points) < 2:
            raise ValueError("linear_points: at least two (tokens, seconds) points are needed")
        self._tokens = [tokens for tokens, _ in self.linear_points]
        # A scheduler asks for the slopes many times in one plan.
        self._chunk_rise_s = self.linear_s(MANY_PROMPT_TOKENS) - self.linear_s(FEW_PROMPT_TOKENS)
        self._batch_rise_s = self.linear_s(MANY_DECODES) - self.linear_s(FEW_DECODES)
        self.upper = self.upper or self.residual_quantiles.get(0.9, 1.0)

    def linear_s(self, tokens: float) -> float:
        """Time of the linear layers for `tokens` tokens, without correction."""
        points = self.linear_points
        i = min(max(bisect.bisect_right(self._tokens, tokens), 1), len(points) - 1)
        (x0, y0), (x1, y1) = points[i - 1], points[i]
        return y0 + (tokens - x0) * (y1 - y0) / (x1 - x0) if tokens > x0 else y0

    def uncorrected_step_s(self, shape: StepShape) -> float:
        """Predicted time of a step by the fitted constants alone; 0 for an empty one."""
        if shape.tokens == 0:
            return 0.0
        return (
            self.launch_s
            + self.linear_s(shape.tokens)
            + self.decode_context_s * shape.decode_context
            + self.decode_s * shape.decodes
            + self.prefill_pair_s * shape.prefill_pairs
            + self.chunk_s * shape.chunks
            + self.row_s * shape.rows
            + (self.head_s if shape.rows else 0.0)
        )

    def parts_s(self, shape: StepShape) -> tuple[float, float]:
        """`uncorrected_step_s` in two: what any step takes and what reads memory, and what grows with the arithmetic of
        more than one token.
        """
        if shape.tokens == 0:
            return 0.0, 0.0
        more_tokens_s = self.linear_s(shape.tokens) - self.linear_s(1)
        arithmetic_s = more_tokens_s + self.prefill_pair_s * shape.prefill_pairs + self.chunk_s * shape.chunks
        return self.uncorrected_step_s(shape) - arithmetic_s, arithmetic_s

    def step_s(self, shape: StepShape) -> float:
        """Predicted time of a step with the online correction."""
        return self.correction * self.uncorrected_step_s(shape)

    def decode_step_s(self, context: int) -> float:
        """One decode alone with `context` cached tokens."""
        return self.step_s(StepShape(1, 1, context, 0.0, 1, 0))

    def prefill_s(self, start: int, count: int) -> float:
        """A prefill of `count` tokens after `start` cached ones, alone in its step, first token included."""
        if count <= 0:
            return 0.0
        return self.step_s(StepShape(count, 0, 0, count * (start + (count + 1) / 2), 1, 1))

    def decodes_s(self, context: int, count: int) -> float:
        """`count` successive lone decodes that begin with `context` cached tokens."""
        if count <= 0:
            return 0.0
        return count * self.decode_step_s(context + count // 2)

    def unloaded_s(self, prompt_tokens: int, output_tokens: int) -> float:
        """End-to-end time of a request alone on the device."""
        return self.prefill_s(0, prompt_tokens) + self.decodes_s(prompt_tokens + 1, output_tokens - 1)

    @property
    def prefill_token_s(self) -> float:
        """Marginal time of one prompt token in a step that runs anyway: the slope of the linear layers over a chunk."""
        return self.correction * self._chunk_rise_s / (MANY_PROMPT_TOKENS - FEW_PROMPT_TOKENS)

    @property
    def efficient_chunk(self) -> int:
        """The fewest measured tokens, from 8, at which one costs at most a quarter more than at the best."""
        (first, base), *rest = self.linear_points
        costs = [(tokens, (seconds - base) / (tokens - first)) for tokens, seconds in rest if tokens >= 8]
        best = min((cost for _, cost in costs), default=0.0)
        return int(next((tokens for tokens, cost in costs if cost <= 1.25 * best), 1))

    @property
    def decode_marginal_s(self) -> float:
        """Marginal time of one more decode in a step that runs anyway, at short context."""
        slope = self._batch_rise_s / (MANY_DECODES - FEW_DECODES)
        return self.correction * (slope + self.decode_s + self.row_s)

    def shared_decode_s(self, batch: int, context: int) -> float:
        """Time of one token when `batch` sequences decode together at this context."""
        shape = StepShape(tokens=batch, decodes=batch, decode_context=batch * context, rows=batch)
        return self.step_s(shape) / batch

    @property
    def upper_ratio(self) -> float:
        """Measured over predicted step time that nine steps in ten stay below, as it has been of late; at least 1."""
        return max(self.upper, 1.0)

    @property
    def log_sigma(self) -> float:
        """Sigma of a log-normal distribution with the residuals' 90 % quantile over their median."""
        ratio = self.residual_quantiles.get(0.9, 1.0) / max(self.residual_quantiles.get(0.5, 1.0), 1e-9)
        return math.log(max(ratio, 1.0)) / 1.2816

    def fresh(self) -> LatencyModel:
        """A copy with the fitted constants and no correction learnt."""
        return dataclasses.replace(self, linear_points=list(self.linear_points), correction=1.0, upper=0.0)

    def at_levels(self, memory: float, arithmetic: float) -> LatencyModel:
        """The model of a device on which the two parts of `parts_s` take so many times as long."""
        first_s = self.linear_s(1)
        return dataclasses.replace(
            self.fresh(),
            launch_s=memory * self.launch_s,
            linear_points=[(x, memory * first_s + arithmetic * (y - first_s)) for x, y in self.linear_points],
            decode_context_s=memory * self.decode_context_s,
            decode_s=memory * self.decode_s,
            prefill_pair_s=arithmetic * self.prefill_pair_s,
            chunk_s=arithmetic * self.chunk_s,
            row_s=memory * self.row_s,
            head_s=memory * self.head_s,
        )

    def observe(self, shape: StepShape, actual_s: float) -> None:
        """Correct the model towards what a step really took; outliers count at most 2 × either way.

        The upper ratio rises by nine parts where a step exceeds it and falls by one where it does not: it settles
        where one step in ten is above (stochastic approximation of a quantile, Robbins and Monro 1951).
        """
        predicted = self.uncorrected_step_s(shape)
        if predicted <= 0.0 or actual_s <= 0.0:
            return
        exceeds = actual_s > self.upper * self.correction * predicted
        self.upper += UPPER_GAIN * (exceeds - (1.0 - UPPER_QUANTILE))
        ratio = min(max(actual_s / predicted, 0.5 * self.correction), 2.0 * self.correction)
        self.correction += self.correction_gain * (ratio - self.correction)
