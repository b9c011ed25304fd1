"""Requests that state their bounds in headers instead of naming a contract: each pair of bounds becomes one.

`x-llm-d-slo-ttft-ms` and `x-llm-d-slo-tpot-ms`, as llm-d's gateway sends them, stand before `x-slo-ttft-ms` and
`x-slo-tpot-ms`; `x-slo-contract-id` stands before both. The bounds are held at p99.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Annotated

from fastapi import Header

from superinfer.cli.serve.errors import invalid
from superinfer.contracts.contract import Bound, SLOContract

CONTRACT_HEADER = "x-slo-contract-id"
FAMILIES = (("x-llm-d-slo-ttft-ms", "x-llm-d-slo-tpot-ms"), ("x-slo-ttft-ms", "x-slo-tpot-ms"))
PERCENTILE = 0.99
MOST_BOUND_MS = 1e9
MOST_KEPT = 64
"""Pairs of bounds in use at once: each is a contract that the scheduler weighs."""


def slo_headers(
    x_slo_contract_id: Annotated[str | None, Header(description="the contract, `service` or `service/sub`")] = None,
    x_llm_d_slo_ttft_ms: Annotated[str | None, Header(description="bound on the time to first token")] = None,
    x_llm_d_slo_tpot_ms: Annotated[str | None, Header(description="bound on the mean time per output token")] = None,
    x_slo_ttft_ms: Annotated[str | None, Header(description="as x-llm-d-slo-ttft-ms, which stands before it")] = None,
    x_slo_tpot_ms: Annotated[str | None, Header(description="as x-llm-d-slo-tpot-ms, which stands before it")] = None,
) -> dict[str, str]:
    """FastAPI dependency: the headers that say what a request was promised, those that are there."""
    values = (x_slo_contract_id, x_llm_d_slo_ttft_ms, x_llm_d_slo_tpot_ms, x_slo_ttft_ms, x_slo_tpot_ms)
    names = (CONTRACT_HEADER, *FAMILIES[0], *FAMILIES[1])
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}


def contract_of_headers(headers: Mapping[str, str]) -> SLOContract | None:
    """The contract that the first family of headers asks for; None without any. 400 for a bound that is no time."""
    for ttft_header, tpot_header in FAMILIES:
        ttft_ms, tpot_ms = _bound_ms(headers, ttft_header), _bound_ms(headers, tpot_header)
        if ttft_ms is None and tpot_ms is None:
            continue
        parts = [f"{name}-{value:.6g}" for name, value in (("ttft", ttft_ms), ("tpot", tpot_ms)) if value is not None]
        return SLOContract(
            # No service can have such an id.
            service_id=f"~{'-'.join(parts)}",
            description="bounds that a request stated in its headers",
            ttft=() if ttft_ms is None else (Bound(PERCENTILE, ttft_ms),),
            tpot=() if tpot_ms is None else (Bound(PERCENTILE, tpot_ms),),
        )
    return None


class KnownContracts:
    """The contracts of headers that the engine knows, the one used last at the end."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, SLOContract] = OrderedDict()

    def use(self, contract: SLOContract) -> tuple[bool, list[str]]:
        """Whether the engine has to learn of this contract first, and the ids of those that it may forget."""
        is_new = contract.service_id not in self._known
        self._known[contract.service_id] = contract
        self._known.move_to_end(contract.service_id)
        gone = []
        while len(self._known) > MOST_KEPT:
            gone.append(self._known.popitem(last=False)[0])
        return is_new, gone


def _bound_ms(headers: Mapping[str, str], name: str) -> float | None:
    text = headers.get(name, "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value <= MOST_BOUND_MS:
        raise invalid(
            f"Invalid {name}: '{text[:80]}' is not a number of milliseconds above 0.", param=name, code="invalid_value"
        )
    # As many digits as the contract's id has, so that an id always means the same bounds.
    return float(f"{value:.6g}")
