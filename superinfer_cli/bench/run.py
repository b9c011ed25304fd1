"""One run: an engine with one policy under the planned load, and what came of every request."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from superinfer.cli.bench.faults import Strike, completed, describe_strike, strike, verify_tokens
from superinfer.cli.bench.load_generator import LoadGenerator, LoadResult
from superinfer.cli.bench.progress import LoadProgress
from superinfer.cli.bench.scenario import Fault
from superinfer.cli.bench.workload import PlannedRequest
from superinfer.contracts.contract import SLOContract
from superinfer.executor.client import EngineClient
from superinfer.executor.config import EngineConfig
from superinfer.executor.launch import EngineProcess
from superinfer.executor.messages import EngineReady
from superinfer.executor.spared_cores import OwnCores
from superinfer.executor.worker import DEFAULT_RUNNER
from superinfer.profiler.latency_model import LatencyModel
from superinfer.results.outcome import Outcome, judge, unloaded_stages_ms
from superinfer.results.summary import PolicyRun

ENGINE_START_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Load:
    """What every policy is put under: the same requests, contracts and faults."""

    warmup: list[PlannedRequest]
    workload: list[PlannedRequest]
    contracts: dict[str, SLOContract]
    faults: list[Fault]
    model: LatencyModel


@dataclass(slots=True)
class RunResult:
    """A policy's run, and why the engine failed in it, if it did."""

    run: PolicyRun
    engine_error: str | None = None


def run_policy(config: EngineConfig, load: Load, *, runner: str = DEFAULT_RUNNER) -> RunResult:
    """Start an engine, run the load, stop the engine. Raises EngineError and its like where it does not start."""
    with EngineProcess(config, runner=runner) as engine:
        engine.wait_ready(ENGINE_START_TIMEOUT_S)
        return asyncio.run(_drive(engine, config.scheduler.policy, load))


async def _drive(engine: EngineProcess, policy: str, load: Load) -> RunResult:
    client = EngineClient(engine.endpoint, engine_alive=engine.is_alive, own_cores=OwnCores())
    ready = await client.connect()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    gc.collect()
    gc.freeze()  # going through all that was imported for garbage would keep requests from being sent in time
    try:
        if load.warmup:
            await LoadGenerator(client, load.warmup, stop=stop).run()
        result, strikes = await _under_load(engine, client, ready, policy, load, stop)
        events = list(client.domain_events)
        faults = [describe_strike(hit, result, events) for hit in strikes]
        if strikes and not stop.is_set() and result.engine_error is None:
            verified = await verify_tokens(client, completed(result), stop)
            faults = [{**fault, **verified} for fault in faults]
        run = PolicyRun(
            policy=policy,
            duration_s=result.duration_s,
            outcomes=judge_all(result, load.contracts, load.model),
            contracts=load.contracts,
            faults=faults,
            interrupted=result.interrupted or stop.is_set(),
        )
        return RunResult(run, result.engine_error)
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        await client.close()


async def _under_load(
    engine: EngineProcess,
    client: EngineClient,
    ready: EngineReady,
    policy: str,
    load: Load,
    stop: asyncio.Event,
) -> tuple[LoadResult, list[Strike]]:
    strikes: list[Strike] = []
    with LoadProgress(policy, load.workload, load.contracts) as progress:
        generator = LoadGenerator(
            client,
            load.workload,
            stop=stop,
            on_sent=progress.on_sent,
            on_end=progress.on_end,
            engine_alive=engine.is_alive,
        )
        striking = asyncio.create_task(
            strike(
                load.faults,
                start_s=generator.result.start_s,
                sending_s=load.workload[-1].offset_s,
                domains=ready.domains,
                events=client.domain_events,
                strikes=strikes,
            )
        )
        result = await generator.run()
        if not engine.is_alive() and result.engine_error is None:
            result.engine_error = "the engine process ended under load"
        striking.cancel()
        with suppress(asyncio.CancelledError):
            await striking
    return result, strikes


def judge_all(result: LoadResult, contracts: dict[str, SLOContract], model: LatencyModel) -> list[Outcome]:
    """Every record of a run held against its contract."""
    outcomes = []
    for record in result.records:
        planned = record.planned
        unloaded = unloaded_stages_ms(model, len(planned.prompt_token_ids), planned.output_tokens)
        measurement = record.measurement(result.start_s)
        outcomes.append(judge(measurement, contracts[planned.service_id], unloaded))
    return outcomes


def longest_request(workload: Sequence[PlannedRequest]) -> int:
    """Tokens of the longest request, prompt and output together."""
    return max(len(planned.prompt_token_ids) + planned.output_tokens for planned in workload)
