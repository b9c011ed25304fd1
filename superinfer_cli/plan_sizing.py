"""How many devices a mix of contracts needs, and what batch: smallest sizes are tried in simulation.

Every figure here is simulated, with step times predicted from data sheets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec
import numpy as np

from superinfer.cli.bench.simulated_load import SimulatedLoad
from superinfer.cli.bench.simulated_run import run_simulated
from superinfer.cli.bench.target import SimulationTarget
from superinfer.contracts.contract import SLOContract
from superinfer.profiler.latency_model import LatencyModel, StepShape
from superinfer.results.attainment import BoundCheck, attainment, check_bounds
from superinfer.scheduler.topology import OfferedLoad

LEAST_SECONDS = 60.0
REQUESTS_OF_THE_RAREST = 300
MOST_REQUESTS = 6000


class ContractVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What one contract got: the share of its requests that held every bound, and each bound at its percentile."""

    name: str
    offered: int
    attainment: float | None
    bounds: list[BoundCheck]

    @property
    def holds(self) -> bool:
        """True where every bound held at its own percentile; always for best effort."""
        return all(bound.held for bound in self.bounds)


class ClusterVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """One size of the cluster: `copies` of the model on `devices`, each decoding up to `batch` sequences at once."""

    copies: int
    devices: int
    batch: int
    seconds: float
    contracts: list[ContractVerdict]

    @property
    def holds(self) -> bool:
        """True where every contract holds."""
        return all(contract.holds for contract in self.contracts)


class Sizing(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes that were tried, smallest first; `needed` is the smallest that holds, None where not even all do."""

    simulated: bool = True
    policy: str
    tensor_parallel: int
    batch: int
    needed_devices: int | None
    tried: list[ClusterVerdict]

    @property
    def needed(self) -> ClusterVerdict | None:
        """The smallest size that holds."""
        return next((each for each in self.tried if each.holds), None)


def size_cluster(
    target: SimulationTarget,
    tensor_parallel: int,
    demands: Mapping[str, OfferedLoad],
    contracts: Mapping[str, SLOContract],
    *,
    policy: str = "slack",
    seed: int = 0,
    on_try: Callable[[int], None] = lambda copies: None,
) -> Sizing:
    """Find by bisection how many of the target's domains the demands need: more hold whatever fewer do.

    `contracts` has those of the demands by name, and all that requests of theirs may fall back to.
    """
    kv_tokens = target.domains[0].kv_blocks * target.limits.block_size
    batch = largest_batch(demands, contracts, target.latency_model, kv_tokens, target.limits.max_running)
    load = planned_load(demands, seed)
    limited = replace(target, limits=msgspec.structs.replace(target.limits, max_running=max(batch, 1)))
    tried: dict[int, ClusterVerdict] = {}

    def holds(copies: int) -> bool:
        if copies not in tried:
            on_try(copies)
            part = replace(limited, domains=limited.domains[:copies])
            run = run_simulated(policy, load, part, contracts, [], seed=seed)
            own = {name: [each for each in run.outcomes if each.service_id == name] for name in demands}
            tried[copies] = ClusterVerdict(
                copies=copies,
                devices=copies * tensor_parallel,
                batch=batch,
                seconds=run.duration_s,
                contracts=[
                    ContractVerdict(
                        name=name,
                        offered=len(own[name]),
                        attainment=attainment(own[name]).share,
                        bounds=check_bounds(contracts[name], own[name]),
                    )
                    for name in demands
                ],
            )
        return tried[copies].holds

    most = len(target.domains)
    needed: int | None = None
    if holds(most):
        low, needed = 0, most
        while needed - low > 1:
            middle = (low + needed) // 2
            if holds(middle):
                needed = middle
            else:
                low = middle
    return Sizing(
        policy=policy,
        tensor_parallel=tensor_parallel,
        batch=batch,
        needed_devices=None if needed is None else needed * tensor_parallel,
        tried=[tried[copies] for copies in sorted(tried)],
    )


def largest_batch(
    demands: Mapping[str, OfferedLoad],
    contracts: Mapping[str, SLOContract],
    model: LatencyModel,
    kv_tokens: int,
    most: int,
) -> int:
    """The most sequences that may share every decode step with all bounds held, by the latency model.

    They are taken to have the mix's mean context, whose KV cache has to fit. 0 where a bound fails even alone.
    """
    weights = [load.rate_per_s * load.output_tokens for load in demands.values()]
    contexts = [load.prompt_tokens + load.output_tokens / 2 for load in demands.values()]
    context = float(np.average(contexts, weights=weights))

    def holds(batch: int) -> bool:
        if batch * context > kv_tokens:
            return False
        shape = StepShape(tokens=batch, decodes=batch, decode_context=round(batch * context), rows=batch)
        step_s = model.step_s(shape)
        for name, load in demands.items():
            contract, prefill_s = contracts[name], model.prefill_s(0, load.prompt_tokens)
            latency_s = prefill_s + (load.output_tokens - 1) * step_s
            for bounds, seconds in ((contract.latency, latency_s), (contract.ttft, prefill_s), (contract.tpot, step_s)):
                if any(seconds * 1e3 > bound.bound_ms for bound in bounds):
                    return False
        return True

    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def planned_load(demands: Mapping[str, OfferedLoad], seed: int) -> SimulatedLoad:
    """A Poisson stream for each demand, long enough for the rarest one, and no more than MOST_REQUESTS together."""
    rates = [load.rate_per_s for load in demands.values()]
    seconds = max(LEAST_SECONDS, REQUESTS_OF_THE_RAREST / min(rates))
    seconds = min(seconds, MOST_REQUESTS / sum(rates))
    random = np.random.default_rng(seed)
    loads = list(demands.values())
    counts = [max(1, int(random.poisson(load.rate_per_s * seconds))) for load in loads]
    offsets = random.uniform(0.0, seconds, sum(counts))
    classes = np.repeat(np.arange(len(loads), dtype=np.int16), counts)
    order = np.argsort(offsets, kind="stable")
    return SimulatedLoad(
        service_ids=list(demands),
        class_numbers=classes[order],
        offsets_s=offsets[order],
        prompt_tokens=np.array([load.prompt_tokens for load in loads], np.int32)[classes[order]],
        output_tokens=np.array([load.output_tokens for load in loads], np.int32)[classes[order]],
    )
