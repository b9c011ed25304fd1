"""The offered load: every request of a run with its arrival time, the same for every policy."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from superinfer.cli.bench.scenario import (
    Arrival,
    Constant,
    FromTrace,
    Lengths,
    Lognormal,
    RequestClass,
    Scenario,
    Uniform,
)
from superinfer.cli.bench.trace import Trace, read_trace
from superinfer.cli.bench.words import WORDS
from superinfer.contracts.contract import BEST_EFFORT_ID
from superinfer.scheduler.request import SamplingParams

Encode = Callable[[str], list[int]]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request of the load; `offset_s` is its scheduled send time after the start of the run."""

    request_id: str
    service_id: str
    offset_s: float
    prompt_token_ids: list[int]
    sampling: SamplingParams

    @property
    def output_tokens(self) -> int:
        """Tokens it will produce: exactly max_tokens, for the end-of-sequence token is ignored."""
        return self.sampling.max_tokens


@dataclass(frozen=True, slots=True)
class RequestShape:
    """A request before it has text: its class and its lengths in tokens."""

    request_class: RequestClass
    prompt_tokens: int
    output_tokens: int


def draw_shapes(scenario: Scenario, seed: int) -> Iterator[RequestShape]:
    """Class and lengths of every request in sending order, from (scenario, seed) alone.

    Classes hold their exact shares (largest remainders), in random order, so that a short run is not skewed.
    """
    shares = [request_class.share for request_class in scenario.classes]
    order = class_order(shares, scenario.requests, _stream(seed, 0))
    lengths, trace = _stream(seed, 1), scenario_trace(scenario)
    for position, number in enumerate(order):
        yield draw_shape(scenario.classes[number], lengths, trace, row=position)


def draw_offsets(scenario: Scenario, seed: int, rate_rps: float) -> FloatArray:
    """Send times of all requests after the start, ascending from 0; another rate only stretches them."""
    gaps = unit_gaps(scenario.arrival, scenario.requests, _stream(seed, 2)) / rate_rps
    offsets: FloatArray = np.cumsum(gaps) - gaps[0]
    return offsets


def offered_rate(scenario: Scenario, capacity_rps: float) -> float:
    """Requests per second: as the scenario says, or a trace's own rate."""
    if scenario.rate_rps is not None:
        return scenario.rate_rps
    if scenario.load is not None:
        return scenario.load * capacity_rps
    trace = scenario_trace(scenario)
    assert trace is not None, "a scenario without load or rate has a trace"
    return 1.0 / trace.mean_gap_s


def scenario_trace(scenario: Scenario) -> Trace | None:
    """The trace that the scenario's arrivals come from, None where they come from a random process."""
    return None if scenario.arrival.file is None else read_trace(Path(scenario.arrival.file))


def sample_class(request_class: RequestClass, count: int, trace: Trace | None = None) -> list[RequestShape]:
    """`count` requests of one class, always the same ones: what its bounds and capacity are computed from."""
    random = _stream(0, 4)
    return [draw_shape(request_class, random, trace) for _ in range(count)]


def draw_shape(
    request_class: RequestClass, random: Generator, trace: Trace | None = None, *, row: int | None = None
) -> RequestShape:
    """One request of a class; lengths of kind trace are those of the trace's `row`, or of a random one."""
    if trace is not None:
        row = int(random.integers(0, len(trace))) if row is None else row % len(trace)
    traced = (None, None) if trace is None else (int(trace.prompt_tokens[row]), int(trace.output_tokens[row]))
    prompt = draw_length(request_class.prompt_tokens, random, traced[0])
    return RequestShape(request_class, prompt, draw_length(request_class.output_tokens, random, traced[1]))


def build_workload(scenario: Scenario, *, seed: int, rate_rps: float, encode: Encode) -> list[PlannedRequest]:
    """The requests of a run, by arrival. A different rate stretches the same arrivals and changes nothing else."""
    offsets = draw_offsets(scenario, seed, rate_rps)
    text = _stream(seed, 3)
    width = len(str(scenario.requests - 1))
    return [
        PlannedRequest(
            request_id=f"r{number:0{width}d}",
            service_id=item.request_class.service_id,
            offset_s=float(offset),
            prompt_token_ids=prompt_of_length(item.prompt_tokens, encode, text),
            sampling=SamplingParams(max_tokens=item.output_tokens, temperature=0.0, ignore_eos=True),
        )
        for number, (item, offset) in enumerate(zip(draw_shapes(scenario, seed), offsets, strict=True))
    ]


def build_warmup(scenario: Scenario, *, seed: int, encode: Encode) -> list[PlannedRequest]:
    """Best-effort requests of each class in turn, all at once, that are sent before the load and not counted."""
    text, trace = _stream(seed, 5), scenario_trace(scenario)
    planned = []
    for number in range(scenario.warmup):
        shape = draw_shape(scenario.classes[number % len(scenario.classes)], text, trace)
        planned.append(
            PlannedRequest(
                request_id=f"warmup-{number}",
                service_id=BEST_EFFORT_ID,
                offset_s=0.0,
                prompt_token_ids=prompt_of_length(shape.prompt_tokens, encode, text),
                sampling=SamplingParams(max_tokens=shape.output_tokens, temperature=0.0, ignore_eos=True),
            )
        )
    return planned


def encode_by_hash(vocab_size: int) -> Encode:
    """A stand-in for models without a tokenizer: one token id per word."""
    return lambda text: [zlib.crc32(word.encode()) % vocab_size for word in text.split()]


def class_order(shares: list[float], count: int, random: Generator) -> list[int]:
    """Class numbers of `count` requests in random order, their counts as near to the shares as whole numbers get."""
    exact = np.array(shares) / sum(shares) * count
    counts = np.floor(exact).astype(int)
    by_remainder = np.argsort(counts - exact, kind="stable")
    counts[by_remainder[: count - counts.sum()]] += 1
    order = np.repeat(np.arange(len(shares)), counts)
    random.shuffle(order)
    return [int(number) for number in order]


def draw_length(lengths: Lengths, random: Generator, traced: int | None = None) -> int:
    """One length in tokens; `traced` is what the trace says."""
    match lengths:
        case Constant(value=value):
            return value
        case Uniform(low=low, high=high):
            return int(random.integers(low, high, endpoint=True))
        case Lognormal(median=median, sigma=sigma, low=low, high=high):
            return min(max(round(random.lognormal(math.log(median), sigma)), low), high)
        case FromTrace(low=low, high=high):
            assert traced is not None, "a scenario with lengths from a trace has one"
            return min(max(traced, low), high)


def unit_gaps(arrival: Arrival, count: int, random: Generator) -> FloatArray:
    """Gaps between arrivals with mean 1."""
    match arrival.process:
        case "poisson":
            return random.exponential(1.0, count)
        case "gamma":
            assert arrival.cv is not None
            shape = 1.0 / arrival.cv**2
            return random.gamma(shape, 1.0 / shape, count)
        case "constant":
            return np.ones(count)
        case "trace":
            assert arrival.file is not None
            return read_trace(Path(arrival.file)).unit_gaps(count)


def prompt_of_length(tokens: int, encode: Encode, random: Generator) -> list[int]:
    """Token ids of random words, exactly `tokens` of them."""
    words: list[str] = []
    ids: list[int] = []
    while len(ids) < tokens:
        words.extend(WORDS[i] for i in random.integers(0, len(WORDS), tokens - len(ids) + 4))
        ids = encode(" ".join(words))
    return ids[:tokens]


def _stream(seed: int, purpose: int) -> Generator:
    """Independent random numbers for each purpose, so that changing one draw leaves the others as they were."""
    return np.random.default_rng([seed, purpose])
