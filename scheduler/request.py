"""A request as the scheduler receives it: tokens in, contract, sampling options."""

from __future__ import annotations

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How output tokens are chosen; the names and meanings are those of the OpenAI and vLLM APIs.

    `temperature == 0` is greedy. `top_k == 0` and `top_p == 1` and `min_p == 0` switch those filters off.
    Draws depend on (seed, output index) alone, so that a request moved to another worker goes on identically.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    @property
    def is_greedy(self) -> bool:
        """True where the most likely token is always taken."""
        return self.temperature <= 0.0

    @property
    def has_penalties(self) -> bool:
        """True where the logits depend on the tokens seen so far."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0


class Request(msgspec.Struct, kw_only=True):
    """One request. `arrival_s` is on the machine's monotonic clock (or the simulator's virtual one).

    `contract_id` is `<service_id>` or `<service_id>/<sub_slo>`. In open-loop load `arrival_s` is the scheduled
    send time, so that a late sender does not hide latency.
    """

    request_id: str
    contract_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    arrival_s: float
