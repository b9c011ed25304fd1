"""A reserved decode stream beside a bandwidth hog on the other core: its tokens' gaps, with and without the ledger.

    python tests/benchmarks/reservation.py [--model NAME] [--reserve GB_PER_S] [--rounds 9] [--dtype float32] [--json]

One engine with two domains, one core each, on one memory bus. The stream runs alone, then beside the hog with its
reservation, then beside the hog without one; rounds alternate so that a busy machine touches all alike. The hog is best
effort in the other domain: prompts and decodes by turns, as fast as it is let. Figures are medians over the rounds of
the mean gap, of the gaps' standard deviation, and of the hog's tokens/s.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import time
from dataclasses import dataclass

from superinfer.cli.bandwidth import ensure_bandwidth
from superinfer.cli.console import err
from superinfer.cli.profile import ensure_profile
from superinfer.contracts.contract import ResourceConstraints, SLOContract
from superinfer.contracts.errors import EngineError
from superinfer.executor.client import EngineClient
from superinfer.executor.config import EngineConfig
from superinfer.executor.launch import EngineProcess
from superinfer.executor.messages import Finished, Tokens
from superinfer.executor.models.catalog import resolve_model
from superinfer.executor.spared_cores import OwnCores
from superinfer.scheduler.config import SchedulerConfig
from superinfer.scheduler.fault_map import HomeAndBackup
from superinfer.scheduler.request import Request, SamplingParams

PROMPT, HOG_PROMPT, HOG_TOKENS = 64, 96, 24
SETTLE_TOKENS = 8
"""Left out at the start of a stream: its prefill, and a hog's step that was under way."""


@dataclass
class Stream:
    """Times at which the tokens of a stream came, and tokens that the hog got meanwhile."""

    gaps_ms: list[float]
    hog_tokens_per_s: float


def request(name: str, contract: str, prompt: int, tokens: int) -> Request:
    return Request(
        request_id=name,
        contract_id=contract,
        prompt_token_ids=[(7 * i) % 1000 + 10 for i in range(prompt)],
        sampling=SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True),
        arrival_s=time.monotonic(),
    )


class Hog:
    """Best-effort requests one after the other until told to stop."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._stop = False
        self.tokens = 0

    async def run(self) -> None:
        number = 0
        while not self._stop:
            number += 1
            async for event in await self._client.submit(
                request(f"hog-{id(self)}-{number}", "best-effort", HOG_PROMPT, HOG_TOKENS)
            ):
                if isinstance(event, Tokens):
                    self.tokens += len(event.token_ids)
                elif not isinstance(event, Finished) or event.error:
                    raise EngineError(f"the hog has ended: {event}")

    def stop(self) -> None:
        self._stop = True


async def stream(client: EngineClient, name: str, contract: str, tokens: int, *, beside_hog: bool) -> Stream:
    hog = Hog(client)
    task = asyncio.create_task(hog.run()) if beside_hog else None
    if task is not None:
        await asyncio.sleep(0.3)
    times: list[float] = []
    before, started = hog.tokens, time.monotonic()
    async for event in await client.submit(request(name, contract, PROMPT, tokens)):
        if isinstance(event, Tokens):
            times.append(event.time_s)
    rate = (hog.tokens - before) / (time.monotonic() - started)
    if task is not None:
        hog.stop()
        await task
    gaps = [1e3 * (after - previous) for previous, after in itertools.pairwise(times)]
    return Stream(gaps[SETTLE_TOKENS:], rate)


async def measure(engine: EngineProcess, tokens: int, rounds: int) -> dict[str, list[Stream]]:
    client = EngineClient(engine.endpoint, engine_alive=engine.is_alive, own_cores=OwnCores())
    await client.connect()
    cases = {"alone": ("reserved", False), "hog, reserved": ("reserved", True), "hog, no ledger": ("plain", True)}
    found: dict[str, list[Stream]] = {case: [] for case in cases}
    try:
        await stream(client, "warm", "plain", 16, beside_hog=True)
        for number in range(rounds):
            for case, (contract, beside_hog) in cases.items():
                one = await stream(client, f"{case}-{number}", contract, tokens, beside_hog=beside_hog)
                found[case].append(one)
    finally:
        await client.close()
    return found


def summary(found: dict[str, list[Stream]]) -> dict[str, dict[str, float]]:
    def median(values: list[float]) -> float:
        return statistics.median(values)

    return {
        case: {
            "mean_gap_ms": median([statistics.fmean(one.gaps_ms) for one in streams]),
            "sigma_ms": median([statistics.pstdev(one.gaps_ms) for one in streams]),
            "p99_gap_ms": median([sorted(one.gaps_ms)[int(0.99 * len(one.gaps_ms))] for one in streams]),
            "hog_tokens_per_s": median([one.hog_tokens_per_s for one in streams]),
        }
        for case, streams in found.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--reserve", type=float, default=None, help="GB/s; 85 %% of what can be reserved by default")
    parser.add_argument("--tokens", type=int, default=320)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    total = ensure_bandwidth()
    reserve = options.reserve or 0.85 * 0.9 * total
    source = resolve_model(options.model)
    contracts = [
        SLOContract(service_id="reserved", resources=ResourceConstraints(reserved_bandwidth_gb_per_s=reserve)),
        SLOContract(service_id="plain"),
    ]
    config = EngineConfig(
        model_dir=str(source.directory),
        profile_path=str(ensure_profile(source, options.dtype, random_weights=False, console=err)),
        dtype=options.dtype,
        domains=2,
        kv_cache_bytes=256 * 2**20,
        contracts=contracts,
        scheduler=SchedulerConfig(
            max_model_len=512,
            fault_domains={
                "reserved": HomeAndBackup(("0",), ()),
                "plain": HomeAndBackup(("0",), ()),
                "best-effort": HomeAndBackup(("1",), ()),
            },
        ),
    )
    with EngineProcess(config) as engine:
        engine.wait_ready(120)
        found = summary(asyncio.run(measure(engine, options.tokens, options.rounds)))
    alone = found["alone"]
    for figures in found.values():
        figures["sigma_against_alone"] = figures["sigma_ms"] / alone["sigma_ms"]
        figures["gap_against_alone"] = figures["mean_gap_ms"] / alone["mean_gap_ms"]
    if options.json:
        print(json.dumps({"device_gb_per_s": total, "reserved_gb_per_s": reserve, **found}, indent=2))
        return 0
    print(f"device {total:.1f} GB/s, reserved {reserve:.1f} GB/s; medians of {options.rounds} rounds")
    print(f"{'':16}{'gap ms':>9}{'sigma ms':>10}{'p99 ms':>9}{'gap ×':>8}{'sigma ×':>9}{'hog tok/s':>11}")
    for case, f in found.items():
        print(
            f"{case:16}{f['mean_gap_ms']:9.2f}{f['sigma_ms']:10.2f}{f['p99_gap_ms']:9.2f}"
            f"{f['gap_against_alone']:8.2f}{f['sigma_against_alone']:9.2f}{f['hog_tokens_per_s']:11.1f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
