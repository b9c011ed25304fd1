"""Whether a contract's bounds can be held at all: none may be below what the model takes alone on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from superinfer.contracts.contract import SLOContract
from superinfer.contracts.errors import ContractError
from superinfer.profiler.latency_model import LatencyModel

Milestone = Literal["latency", "ttft", "tpot"]
MILESTONES: tuple[Milestone, ...] = ("latency", "ttft", "tpot")


@dataclass(frozen=True)
class BoundCheck:
    """One bound beside the time that a request of the given size takes on an otherwise idle device."""

    contract_id: str
    milestone: Milestone
    percentile: float
    bound_ms: float
    unloaded_ms: float
    prompt_tokens: int
    output_tokens: int

    @property
    def attainable(self) -> bool:
        """False where no scheduling could hold the bound."""
        return self.bound_ms >= self.unloaded_ms

    @property
    def what_takes_long(self) -> str:
        """What the unloaded time is the time of."""
        prompt = f"a prompt of {_count(self.prompt_tokens)}"
        match self.milestone:
            case "ttft":
                return prompt
            case "tpot":
                return f"each further token after {prompt}"
            case "latency":
                return f"a request with {prompt} and an answer of {_count(self.output_tokens)}"

    def __str__(self) -> str:
        bound = f"{self.milestone} p{percentile_digits(self.percentile)} {self.bound_ms:g} ms"
        return (
            f"contract {self.contract_id!r}: {bound} is below the {self.unloaded_ms:.4g} ms that "
            f"{self.what_takes_long} takes alone on this device"
        )


class UnattainableContractError(ContractError):
    """Bounds that the device cannot hold even without load; `shortfalls` has each of them."""

    def __init__(self, shortfalls: Sequence[BoundCheck]) -> None:
        self.shortfalls = tuple(shortfalls)
        more = len(self.shortfalls) - 1
        suffix = f" (and {more} more)" if more else ""
        super().__init__(f"{self.shortfalls[0]}{suffix}; raise the bound, or accept it with --allow-unattainable")


def unloaded_ms(model: LatencyModel, prompt_tokens: int, output_tokens: int) -> dict[Milestone, float]:
    """Each milestone's time for one request alone on the device; the tpot of a lone token is a second one's."""
    further = max(output_tokens - 1, 1)
    return {
        "latency": 1e3 * model.unloaded_s(prompt_tokens, output_tokens),
        "ttft": 1e3 * model.prefill_s(0, prompt_tokens),
        "tpot": 1e3 * model.decodes_s(prompt_tokens + 1, further) / further,
    }


def check_bounds(
    contract: SLOContract, model: LatencyModel, prompt_tokens: int = 1, output_tokens: int = 1
) -> list[BoundCheck]:
    """Every bound of a contract and of its sub-tasks against requests of this size.

    One token in and one out is the least that any request asks: what falls short then is out of reach for all.
    """
    floor = unloaded_ms(model, prompt_tokens, output_tokens)
    parts = {contract.service_id: contract}
    parts |= {f"{contract.service_id}/{name}": sub for name, sub in contract.sub_slos.items()}
    return [
        BoundCheck(
            contract_id, milestone, bound.percentile, bound.bound_ms, floor[milestone], prompt_tokens, output_tokens
        )
        for contract_id, part in parts.items()
        for milestone in MILESTONES
        for bound in getattr(part, milestone)
    ]


def shortfalls(
    contracts: Iterable[SLOContract],
    model: LatencyModel | Callable[[SLOContract], LatencyModel],
    prompt_tokens: int = 1,
    output_tokens: int = 1,
) -> list[BoundCheck]:
    """The bounds of these contracts that cannot be held, by one latency model or by that of each."""
    of = (lambda _: model) if isinstance(model, LatencyModel) else model
    checks = (check for one in contracts for check in check_bounds(one, of(one), prompt_tokens, output_tokens))
    return [check for check in checks if not check.attainable]


def percentile_digits(percentile: float) -> str:
    """50, 99 or 999, as in p999."""
    return f"{percentile:.6f}".rstrip("0")[2:].ljust(2, "0")


def _count(tokens: int) -> str:
    return "1 token" if tokens == 1 else f"{tokens} tokens"
