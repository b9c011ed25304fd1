"""The offered load of a simulated run: the same arrivals, classes and lengths as a real run's, and no text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from superinfer.cli.bench.scenario import Scenario
from superinfer.cli.bench.workload import draw_offsets, draw_shapes
from superinfer.scheduler.request import Request, SamplingParams


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedLoad:
    """Requests in columns, by arrival; `class_numbers` index `service_ids`."""

    service_ids: list[str]
    class_numbers: NDArray[np.int16]
    offsets_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.offsets_s)

    @property
    def sending_s(self) -> float:
        """The send time of the last request."""
        return float(self.offsets_s[-1])

    @property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and output together."""
        return int((self.prompt_tokens + self.output_tokens).max())

    def requests(self) -> Iterator[Request]:
        """The requests one by one, all prompts of a length being one list: nobody may write to it.

        Ids and everything that a scheduler sees are those of a real run with the same scenario and seed.
        """
        width = len(str(len(self) - 1))
        prompts: dict[int, list[int]] = {}
        sampling: dict[int, SamplingParams] = {}
        columns = zip(
            self.class_numbers.tolist(),
            self.offsets_s.tolist(),
            self.prompt_tokens.tolist(),
            self.output_tokens.tolist(),
            strict=True,
        )
        for number, (class_number, offset_s, prompt, output) in enumerate(columns):
            if prompt not in prompts:
                prompts[prompt] = [0] * prompt
            if output not in sampling:
                sampling[output] = SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True)
            yield Request(
                request_id=f"r{number:0{width}d}",
                contract_id=self.service_ids[class_number],
                prompt_token_ids=prompts[prompt],
                sampling=sampling[output],
                arrival_s=offset_s,
            )


def simulated_load(scenario: Scenario, *, seed: int, rate_rps: float) -> SimulatedLoad:
    """The load of (scenario, seed) at a rate; a million requests take 20 bytes each."""
    service_ids = [request_class.service_id for request_class in scenario.classes]
    numbers = {service_id: number for number, service_id in enumerate(service_ids)}
    classes = np.empty(scenario.requests, dtype=np.int16)
    prompts = np.empty(scenario.requests, dtype=np.int32)
    outputs = np.empty(scenario.requests, dtype=np.int32)
    for row, shape in enumerate(draw_shapes(scenario, seed)):
        classes[row] = numbers[shape.request_class.service_id]
        prompts[row], outputs[row] = shape.prompt_tokens, shape.output_tokens
    return SimulatedLoad(service_ids, classes, draw_offsets(scenario, seed, rate_rps), prompts, outputs)
