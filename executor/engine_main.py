"""The engine's process: `python -m superinfer.executor.engine_main --directory DIR --runner module:Class`.

An EngineConfig comes as msgpack on standard input, which is also the lifeline to the launcher.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys

import msgspec

from superinfer.executor.config import EngineConfig, worker_kinds
from superinfer.executor.cores import assign_cores
from superinfer.executor.kv_pools import make_pools
from superinfer.executor.lifeline import read_settings
from superinfer.executor.process_name import name_process
from superinfer.executor.time_slices import SHORT_S, ask_for_slices
from superinfer.executor.worker import DEFAULT_RUNNER
from superinfer.executor.worker_forks import ForkServer


def engine_endpoint(directory: str) -> str:
    """Where the engine that uses this directory listens."""
    return f"ipc://{directory}/engine.sock"


def main() -> int:
    """Run the engine process; the exit code is that of the error that ended it."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--directory", required=True, help="holds engine.sock; removed at the end")
    arguments.add_argument("--runner", default=DEFAULT_RUNNER)
    options = arguments.parse_args()
    config = msgspec.msgpack.decode(read_settings(), type=EngineConfig)
    name_process("superinfer:eng")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    worker_cores, engine_cores = assign_cores(config.domains, list(os.sched_getaffinity(0)))
    os.sched_setaffinity(0, engine_cores)
    kv_pools = make_pools(config.domains) if config.checkpoint.enabled else []
    forks: ForkServer | None = None
    if config.fork_workers:
        forks = ForkServer(options.runner, worker_kinds(config, kv_pools))
        forks.start()  # it imports what workers need while this process imports what it needs itself
    from superinfer.executor.engine import Engine

    ask_for_slices(SHORT_S)  # its sockets' threads as well
    engine = Engine(
        config,
        engine_endpoint(options.directory),
        runner=options.runner,
        worker_cores=worker_cores,
        lifeline=0,
        kv_pools=kv_pools,
        forks=forks,
    )
    try:
        return engine.run()
    finally:
        shutil.rmtree(options.directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
