"""`superinfer serve`: check everything that is quick, start the engine, serve until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from superinfer.cli.serve.api_keys import KeyHolder
    from superinfer.cli.serve.contract_book import ContractBook
    from superinfer.contracts.contract import SLOContract
    from superinfer.executor.config import EngineConfig
    from superinfer.executor.models.source import ModelSource
    from superinfer.profiler.latency_model import LatencyModel
    from superinfer.scheduler.fault_map import FaultMap

API_KEY_VARIABLE = "SUPERINFER_API_KEY"
START_TIMEOUT_S = 600.0


def serve(
    model: Annotated[str, typer.Argument(help="smollm2-135m-instruct, a Hugging Face model directory, or a hub id.")],
    contracts: Annotated[
        Path | None, typer.Option(help="Contract file or directory of them (*.yaml, *.json).", show_default="none")
    ] = None,
    contracts_state: Annotated[
        Path | None,
        typer.Option(
            help="JSON file that keeps what is registered, updated and retired over HTTP.",
            show_default="until the server ends",
        ),
    ] = None,
    allow_unattainable: Annotated[
        bool,
        typer.Option("--allow-unattainable", help="Accept bounds below the model's own unloaded time on this machine."),
    ] = False,
    policy: Annotated[str, typer.Option(help="Scheduling policy.")] = "slack",
    domains: Annotated[int, typer.Option(min=1, help="Fault domains: one worker process each.")] = 1,
    fault_domains: Annotated[
        Path | None,
        typer.Option(
            help="YAML file that says which domains serve which contract, such as `risk-scoring: [domain-0]`.",
            show_default="every domain serves all",
        ),
    ] = None,
    admission: Annotated[
        Literal["accept", "refuse"],
        typer.Option(
            help="refuse: requests that load would make late go to their contract's alternative service, or get a 429 "
            "with the time to try again.",
        ),
    ] = "accept",
    max_waiting: Annotated[
        int | None,
        typer.Option(
            min=1, help="Requests of a best-effort contract that may wait; more get a 429.", show_default="no limit"
        ),
    ] = None,
    budget_window: Annotated[
        float, typer.Option(min=1, help="Seconds over which contracts' error budgets are kept.")
    ] = 3600.0,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    served_model_name: Annotated[
        str | None, typer.Option(help="Name that clients use for the model.", show_default="MODEL")
    ] = None,
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        typer.Option(help="Precision; auto is bfloat16 where the CPU multiplies it in hardware."),
    ] = "auto",
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Random weights, for a directory that has a config alone.")
    ] = False,
    kv_cache_memory: Annotated[
        str | None,
        typer.Option(help="KV cache of each domain, like 2GiB.", show_default="a share of the free memory"),
    ] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option(
            min=1, help="Longest prompt and answer together, in tokens.", show_default="the model's, up to 8192"
        ),
    ] = None,
    decay_profile: Annotated[
        Path | None, typer.Option(help="slack_decay_profile.yaml from `superinfer tune`.", show_default="built in")
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Key that clients must send; may be repeated. Better set {API_KEY_VARIABLE} (several with spaces "
            "between), which other users of the machine cannot see.",
            show_default="open to all",
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            "--api-keys",
            help="YAML file of API keys and the contracts that each may use, such as `sk-abc: [risk-scoring]`.",
            show_default="keys may use every contract",
        ),
    ] = None,
    shutdown_grace: Annotated[
        float, typer.Option(min=0, help="Seconds that requests in flight have to finish after SIGINT or SIGTERM.")
    ] = 10.0,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="What is logged to standard error.")
    ] = "info",
) -> None:
    """Serve MODEL with an OpenAI-compatible API; requests name their SLO contract in x-slo-contract-id."""
    import msgspec

    from superinfer.cli.serve.address import bind
    from superinfer.cli.serve.api_keys import load_api_keys
    from superinfer.cli.serve.contract_book import ContractBook, load_contracts_and_state
    from superinfer.cli.serve.sizes import parse_bytes
    from superinfer.contracts.errors import UsageError
    from superinfer.contracts.state_file import StateFile
    from superinfer.profiler.store import load_profile

    if served_model_name is not None and not served_model_name.strip():
        raise UsageError(f"--served-model-name {served_model_name!r}: a name that is not empty is expected")
    keys = api_keys(api_key)
    kv_cache_bytes = None if kv_cache_memory is None else parse_bytes(kv_cache_memory, "--kv-cache-memory")
    check_scheduling(policy, decay_profile)
    with contextlib.ExitStack() as stack:
        state_file = None if contracts_state is None else stack.enter_context(StateFile(contracts_state))
        registry, state = load_contracts_and_state(contracts, state_file, _note)
        contract_ids = all_contract_ids(registry.list())
        fault_map = read_fault_map(fault_domains, contract_ids, domains)
        holders = load_api_keys(api_key_file, contract_ids) if api_key_file is not None else ()
        bound = stack.enter_context(bind(host, port))
        signal.signal(signal.SIGTERM, _interrupt)
        if not keys and not holders and not _is_loopback(bound):
            _note(f"{host} can be reached from other machines and no API key is set; anyone may use the server")
        source = find_model(model)
        length = context_length(source, max_model_len)
        config = engine_config(
            source,
            contracts=registry.list(),
            policy=policy,
            domains=domains,
            dtype=dtype,
            random_weights=random_weights,
            kv_cache_bytes=kv_cache_bytes,
            max_model_len=length,
            decay_profile=decay_profile,
            fault_map=fault_map,
        )
        scheduling = msgspec.structs.replace(
            config.scheduler, admission=admission, max_waiting=max_waiting, budget_window_s=budget_window
        )
        config = msgspec.structs.replace(config, scheduler=scheduling)
        profile = load_profile(Path(config.profile_path))
        latency_model = profile.latency_model
        note_unreserved(registry.list(), profile.device.memory_read_gb_per_s)
        check_attainable(registry.list(), latency_model, allow=allow_unattainable)
        book = ContractBook(
            registry,
            state_file=state_file,
            state=state,
            latency_model=latency_model,
            allow_unattainable=allow_unattainable,
        )
        run(
            source,
            config,
            book,
            bound,
            host=host,
            model_name=served_model_name or source.name,
            keys=keys,
            holders=holders,
            grace_s=shutdown_grace,
            log_level=log_level,
        )


def _note(text: str) -> None:
    from superinfer.cli.console import err

    err.print(f"note: {text}", markup=False, highlight=False, soft_wrap=True)


def check_attainable(contracts: list[SLOContract], model: LatencyModel, *, allow: bool) -> None:
    """UnattainableContractError where a bound is below what one token takes; a note for each where let in."""
    from superinfer.profiler.feasibility import UnattainableContractError, shortfalls

    short = shortfalls(contracts, model)
    if short and not allow:
        raise UnattainableContractError(short)
    for check in short:
        _note(f"accepted though out of reach: {check}")


def note_unreserved(contracts: Iterable[SLOContract], bandwidth_gb_per_s: float | None) -> None:
    """A note for each contract whose bandwidth cannot be kept: what there is is not known, or less."""
    from superinfer.scheduler.ledger import DeviceBandwidth

    for contract in contracts:
        wanted = contract.resources.reserved_bandwidth_gb_per_s
        if wanted is None:
            continue
        if bandwidth_gb_per_s is None:
            _note(f"contract {contract.service_id}: the profile has no memory bandwidth, so none is reserved")
        elif wanted > (most := DeviceBandwidth("", bandwidth_gb_per_s).reservable_gb_per_s):
            _note(
                f"contract {contract.service_id} reserves {wanted:g} GB/s; at most {most:.1f} GB/s of a domain can be, "
                "so its requests will be refused"
            )


def _interrupt(number: int, frame: FrameType | None) -> None:
    """SIGTERM before the server runs ends what has been started, as Ctrl-C does."""
    raise KeyboardInterrupt


def _is_loopback(bound: socket.socket) -> bool:
    import ipaddress

    return ipaddress.ip_address(bound.getsockname()[0].partition("%")[0]).is_loopback


def api_keys(given: list[str] | None) -> tuple[str, ...]:
    """The keys of the command line and of the environment, which child processes need not inherit."""
    from superinfer.contracts.errors import UsageError

    keys = [*(given or []), *os.environ.pop(API_KEY_VARIABLE, "").split()]
    if any(not key.strip() or any(character.isspace() for character in key) for key in keys):
        raise UsageError("--api-key: a key is empty or holds white space; give one word")
    return tuple(keys)


def check_scheduling(policy: str, decay_profile: Path | None) -> None:
    """UsageError unless the policy is known and the decay profile, where one is named, can be used."""
    from superinfer.contracts.errors import UsageError
    from superinfer.scheduler.decay import load_decay_profile
    from superinfer.scheduler.policies.planner_config import planner_from_mapping
    from superinfer.scheduler.policies.registry import check_policy

    check_policy(policy)
    if decay_profile is None:
        return
    if not decay_profile.is_file():
        raise UsageError(f"--decay-profile {decay_profile} is not a file; `superinfer tune --out FILE` writes one")
    _, planner = load_decay_profile(decay_profile)
    planner_from_mapping(planner, str(decay_profile))


def all_contract_ids(contracts: Iterable[SLOContract]) -> list[str]:
    """What requests may name: every service, and every sub-task as "service/sub"."""
    return [
        contract_id
        for contract in contracts
        for contract_id in (contract.service_id, *(f"{contract.service_id}/{name}" for name in contract.sub_slos))
    ]


def read_fault_map(path: Path | None, contract_ids: list[str], domains: int) -> FaultMap:
    """The map of `--fault-domains`, held against the contracts and domains there are; empty without one."""
    from superinfer.scheduler.fault_map import load_fault_map, resolve_fault_map

    if path is None:
        return {}
    domain_ids = [str(number) for number in range(domains)]
    return resolve_fault_map(load_fault_map(path), domain_ids, contract_ids=contract_ids, source=str(path))


def count(number: int, noun: str) -> str:
    """ "1 domain", "2 domains", "2 processes"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


def find_model(model: str) -> ModelSource:
    """Resolve MODEL, with a progress bar while it is fetched and converted."""
    from superinfer.cli.console import progress_bar
    from superinfer.executor.models.catalog import resolve_model

    with progress_bar() as progress:
        tasks = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total)
            progress.update(tasks[stage], completed=done, total=total)

        return resolve_model(model, progress=report)


DEFAULT_CONTEXT_LIMIT = 8192


def context_length(source: ModelSource, asked: int | None) -> int:
    """The context to serve: as asked, else the model's own, up to DEFAULT_CONTEXT_LIMIT."""
    import json

    from superinfer.contracts.errors import UsageError

    config = json.loads((source.directory / "config.json").read_text(encoding="utf-8"))
    own = int(config.get("max_position_embeddings", DEFAULT_CONTEXT_LIMIT))
    if asked is not None and asked > own:
        raise UsageError(f"--max-model-len {asked} is more than the {own} tokens that {source.name} can take")
    return min(own, DEFAULT_CONTEXT_LIMIT) if asked is None else asked


def engine_config(
    source: ModelSource,
    *,
    contracts: list[SLOContract],
    policy: str,
    domains: int,
    dtype: Literal["auto", "float32", "bfloat16"],
    random_weights: bool,
    kv_cache_bytes: int | None,
    max_model_len: int,
    decay_profile: Path | None,
    fault_map: FaultMap,
) -> EngineConfig:
    """What the engine is started with; the model is profiled here on its first use on this machine."""
    from superinfer.cli.console import err
    from superinfer.cli.profile import ensure_profile
    from superinfer.executor.config import EngineConfig
    from superinfer.scheduler.config import SchedulerConfig

    profile_path = ensure_profile(source, dtype, random_weights=random_weights, console=err)
    return EngineConfig(
        model_dir=str(source.directory),
        profile_path=str(profile_path),
        domains=domains,
        dtype=dtype,
        random_weights=random_weights,
        kv_cache_bytes=kv_cache_bytes,
        scheduler=SchedulerConfig(
            policy=policy,
            max_model_len=max_model_len,
            decay_profile_path=None if decay_profile is None else str(decay_profile),
            fault_domains=fault_map,
        ),
        contracts=contracts,
    )


def run(
    source: ModelSource,
    config: EngineConfig,
    book: ContractBook,
    bound: socket.socket,
    *,
    host: str,
    model_name: str,
    keys: tuple[str, ...],
    holders: tuple[KeyHolder, ...],
    grace_s: float,
    log_level: str,
) -> None:
    """Start the engine, serve until a signal, end the engine. Raises EngineError if the engine ends by itself."""
    from superinfer.cli.console import err, out
    from superinfer.cli.serve.address import listen, url
    from superinfer.cli.serve.app import create_app
    from superinfer.cli.serve.server import run_server
    from superinfer.cli.serve.state import ServerSettings
    from superinfer.contracts.errors import EngineError
    from superinfer.executor.client import EngineClient
    from superinfer.executor.launch import EngineProcess
    from superinfer.executor.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(source.directory)
    port = bound.getsockname()[1]

    async def main(engine: EngineProcess) -> None:
        client = EngineClient(engine.endpoint, engine_alive=engine.is_alive)
        ready = await client.connect()
        settings = ServerSettings(model_name, ready.max_model_len, keys, holders)
        app = create_app(client, tokenizer, book.registry, settings, book=book)
        listen(bound, host, port)

        def on_ready() -> None:
            out.print(
                f"serving {model_name} at {url(host, port)}/v1 · policy {config.scheduler.policy} · "
                f"{count(len(ready.domains), 'domain')} · {count(len(book.registry.list()) - 1, 'contract')}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )

        try:
            stopped = await run_server(
                app,
                bound,
                grace_s=grace_s,
                log_level=log_level,
                on_ready=on_ready,
                engine_is_alive=engine.is_alive,
                domain_events=client.domain_events,
            )
            if not stopped:
                await client.stats()  # raises with what the engine said last
                raise EngineError("the engine process ended, so the server stopped")
        finally:
            await client.close()

    with EngineProcess(config) as engine:
        with err.status(f"starting {count(config.domains, 'worker process')} …"):
            engine.wait_ready(START_TIMEOUT_S)
        asyncio.run(main(engine))
