"""`superinfer serve`: check everything that is quick, start the engine, serve until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import stat
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from superinfer.cli.domain_options import DomainKindFlags, DomainsFile
from superinfer.cli.kv_options import (
    DecayProfilePath,
    HostKVMemory,
    KeepKV,
    PrefixCache,
    SaveIntervalMs,
    SaveStrategy,
)
from superinfer.executor.silence import SILENCE_S

if TYPE_CHECKING:
    from superinfer.cli.serve.api_keys import KeyHolder
    from superinfer.cli.serve.contract_book import ContractBook
    from superinfer.executor.config import EngineConfig
    from superinfer.executor.messages import DomainInfo
    from superinfer.executor.models.source import ModelSource

API_KEY_VARIABLE = "SUPERINFER_API_KEY"
START_TIMEOUT_S = 600.0
READABLE_BY_OTHERS = stat.S_IRGRP | stat.S_IROTH


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
    domains: Annotated[
        int | None, typer.Option(min=1, help="Fault domains: one worker process each.", show_default="1")
    ] = None,
    domain_kind: DomainKindFlags = None,
    domains_file: DomainsFile = None,
    fault_domains: Annotated[
        Path | None,
        typer.Option(
            help="YAML file that says which domains serve which contract: a list of domains for each.",
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
        Literal["auto", "float32", "bfloat16", "int8"],
        typer.Option(
            help="Precision; auto is bfloat16 where the CPU multiplies it in hardware, int8 is of the weights alone."
        ),
    ] = "auto",
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Random weights, for a directory that has a config alone.")
    ] = False,
    kv_cache_memory: Annotated[
        str | None,
        typer.Option(help="KV cache of each domain, like 2GiB.", show_default="a share of the free memory"),
    ] = None,
    host_kv_memory: HostKVMemory = None,
    checkpoint: KeepKV = True,
    save_interval_ms: SaveIntervalMs = None,
    save_strategy: SaveStrategy = "incremental",
    prefix_cache: PrefixCache = True,
    max_model_len: Annotated[
        int | None,
        typer.Option(
            min=1, help="Longest prompt and answer together, in tokens.", show_default="the model's, up to 8192"
        ),
    ] = None,
    decay_profile: DecayProfilePath = None,
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
            help="YAML file of API keys and, for each, a list of the contracts that it may use.",
            show_default="keys may use every contract",
        ),
    ] = None,
    shutdown_grace: Annotated[
        float, typer.Option(min=0, help="Seconds that requests in flight have to finish after SIGINT or SIGTERM.")
    ] = 10.0,
    engine_timeout: Annotated[
        float,
        typer.Option(min=1, help="Seconds of silence after which a stopped or hung engine's requests end with a 503."),
    ] = SILENCE_S,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="What is logged to standard error.")
    ] = "info",
) -> None:
    """Serve MODEL with an OpenAI-compatible API; requests name their SLO contract in x-slo-contract-id."""
    import msgspec

    from superinfer.cli.bandwidth import ensure_bandwidth
    from superinfer.cli.domain_kinds import asked_kinds, fastest_model, make_groups, predicted_kinds
    from superinfer.cli.host_memory import checkpoints, host_blocks
    from superinfer.cli.serve.address import bind
    from superinfer.cli.serve.api_keys import load_api_keys
    from superinfer.cli.serve.contract_book import ContractBook, load_contracts_and_state
    from superinfer.cli.serve.preparation import (
        all_contract_ids,
        api_keys,
        check_attainable,
        check_scheduling,
        context_length,
        engine_config,
        find_model,
        note,
        note_other_devices,
        note_unreserved,
        note_unserved,
        read_fault_map,
    )
    from superinfer.cli.serve.sizes import parse_bytes
    from superinfer.contracts.errors import UsageError
    from superinfer.contracts.state_file import StateFile
    from superinfer.profiler.store import load_profile
    from superinfer.scheduler.config import SchedulerConfig

    if served_model_name is not None and not served_model_name.strip():
        raise UsageError(f"--served-model-name {served_model_name!r}: a name that is not empty is expected")
    keys = api_keys(api_key)
    kv_cache_bytes = None if kv_cache_memory is None else parse_bytes(kv_cache_memory, "--kv-cache-memory")
    check_scheduling(policy, decay_profile)
    asked = asked_kinds(domain_kind, domains_file, domains)
    domain_count = sum(kind.domains for kind in asked) or domains or 1
    with contextlib.ExitStack() as stack:
        state_file = None if contracts_state is None else stack.enter_context(StateFile(contracts_state))
        registry, state = load_contracts_and_state(contracts, state_file, note)
        contract_ids = all_contract_ids(registry.list())
        fault_map = read_fault_map(fault_domains, contract_ids, domain_count)
        holders = load_api_keys(api_key_file, contract_ids) if api_key_file is not None else ()
        if api_key_file is not None and api_key_file.stat().st_mode & READABLE_BY_OTHERS:
            note(f"--api-keys {api_key_file}: other users of this machine can read it; chmod 600 keeps it to yourself")
        bound = stack.enter_context(bind(host, port))
        signal.signal(signal.SIGTERM, _interrupt)
        if not keys and not holders and not _is_loopback(bound):
            note(f"{host} can be reached from other machines and no API key is set; anyone may use the server")
        source = find_model(model)
        length = context_length(source, max_model_len)
        groups = make_groups(
            asked,
            source,
            dtype,
            random_weights=random_weights,
            kv_cache_bytes=kv_cache_bytes,
            host_kv_memory=host_kv_memory,
            block_size=SchedulerConfig().block_size,
        )
        config = engine_config(
            source,
            contracts=registry.list(),
            policy=policy,
            domains=domain_count,
            dtype=dtype,
            random_weights=random_weights,
            kv_cache_bytes=kv_cache_bytes,
            max_model_len=length,
            decay_profile=decay_profile,
            fault_map=fault_map,
            groups=groups,
        )
        profile = load_profile(Path(config.profile_path))
        scheduling = msgspec.structs.replace(
            config.scheduler,
            admission=admission,
            max_waiting=max_waiting,
            budget_window_s=budget_window,
            host_blocks=host_blocks(host_kv_memory, profile, config.scheduler.block_size),
            prefix_cache=prefix_cache,
        )
        config = msgspec.structs.replace(
            config,
            scheduler=scheduling,
            checkpoint=checkpoints(checkpoint, save_interval_ms, save_strategy, host_kv_memory),
        )
        kinds = predicted_kinds(groups)
        latency_model = fastest_model(kinds) if kinds else profile.latency_model
        note_unreserved(registry.list(), ensure_bandwidth())
        if kinds:
            note_unserved(registry.list(), kinds)
        else:
            note_other_devices(registry.list(), profile.device.name)
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
            silence_s=engine_timeout,
            log_level=log_level,
        )


def _interrupt(number: int, frame: FrameType | None) -> None:
    """SIGTERM before the server runs ends what has been started, as Ctrl-C does."""
    raise KeyboardInterrupt


def _is_loopback(bound: socket.socket) -> bool:
    import ipaddress

    return ipaddress.ip_address(bound.getsockname()[0].partition("%")[0]).is_loopback


def count(number: int, noun: str) -> str:
    """ "1 domain", "2 domains", "2 processes"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


def domains_text(domains: Sequence[DomainInfo]) -> str:
    """ "2 domains", or where they are of several kinds "2 domains (1 float32, 1 int8)"."""
    text, kinds = count(len(domains), "domain"), Counter(domain.kind for domain in domains)
    return text if len(kinds) < 2 else f"{text} ({', '.join(f'{number} {kind}' for kind, number in kinds.items())})"


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
    silence_s: float,
    log_level: str,
) -> None:
    """Start the engine, serve until a signal, end the engine. Raises EngineError if the engine ends by itself."""
    from superinfer.cli.console import err, out
    from superinfer.cli.serve.address import listen, url
    from superinfer.cli.serve.app import create_app
    from superinfer.cli.serve.preparation import note
    from superinfer.cli.serve.server import run_server
    from superinfer.cli.serve.state import ServerSettings
    from superinfer.contracts.errors import EngineError
    from superinfer.executor.client import EngineClient
    from superinfer.executor.launch import EngineProcess
    from superinfer.executor.runtime.cpu import CpuRuntime
    from superinfer.executor.runtime.device_sampler import DeviceSampler
    from superinfer.executor.spared_cores import OwnCores
    from superinfer.executor.tokenizer import Tokenizer, load_tokenizer

    port = bound.getsockname()[1]

    async def main(engine: EngineProcess, tokenizer: Tokenizer) -> None:
        client = EngineClient(engine.endpoint, engine_alive=engine.is_alive, silence_s=silence_s, own_cores=OwnCores())
        ready = await client.connect()
        settings = ServerSettings(model_name, ready.max_model_len, keys, holders)
        devices = DeviceSampler(CpuRuntime())
        app = create_app(client, tokenizer, book.registry, settings, book=book, devices=devices)
        listen(bound, host, port)

        def on_ready() -> None:
            out.print(
                f"serving {model_name} at {url(host, port)}/v1 · policy {config.scheduler.policy} · "
                f"{domains_text(ready.domains)} · {count(len(book.registry.list()) - 1, 'contract')}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )

        gc.freeze()  # what is there by now stays: going through it for garbage would hold every stream up for 100 ms
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

    if not err.is_terminal:
        note("starting; the first start on a CPU compiles kernels, which takes a minute or two")
    with EngineProcess(config) as engine:
        with err.status(f"starting {count(config.domains, 'worker process')} …"):
            tokenizer = load_tokenizer(source.directory)  # while the engine starts: both take seconds
            engine.wait_ready(START_TIMEOUT_S)
        asyncio.run(main(engine, tokenizer))
