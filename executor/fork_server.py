"""The process that workers are forked from: it has imported and loaded all that a worker needs, and built nothing.

`python -m superinfer.executor.fork_server --socket FD --runner module:Class`. Each order on the socket is an endpoint,
with a lifeline and a socket on which the worker's birth is reported. A WorkerConfig of each kind of workers that there
will be comes on standard input. Importing takes seconds, forking milliseconds: so two workers cost one import, and one
that died is soon back.

Only a process of one thread may be forked without harm. Where a library has started threads all the same, the worker
is made from scratch, by exec.
"""

from __future__ import annotations

import argparse
import gc
import os
import socket
import sys
import time
import traceback
from typing import NoReturn

import msgspec

from superinfer.contracts.errors import SuperInferError
from superinfer.executor.config import WorkerConfig
from superinfer.executor.lean_torch import lean_torch_import
from superinfer.executor.lifeline import die_with_parent, read_settings
from superinfer.executor.process_name import name_process
from superinfer.executor.worker import DEFAULT_RUNNER, load_runner, run_worker
from superinfer.executor.worker_messages import ForkOrder, WorkerBorn

MAX_ORDER_BYTES = 65536
_HANDED_ON_S = 0.0002


def prepare(runner: str, kinds: list[WorkerConfig]) -> None:
    """Import the runner, and let it load what workers of these kinds need."""
    with lean_torch_import():
        made = load_runner(runner)
    preload = getattr(made, "preload", None)
    if preload is not None:
        for like in kinds:
            preload(like)


def serve(orders: socket.socket, runner: str) -> None:
    """Fork a worker for each order, until the engine closes the socket."""
    decoder = msgspec.msgpack.Decoder(ForkOrder)
    while True:
        frame, files, _, _ = socket.recv_fds(orders, MAX_ORDER_BYTES, 2)
        if not frame:
            return
        lifeline, birth = files
        order = decoder.decode(frame)
        with socket.socket(fileno=birth) as report:
            try:
                fork(orders, report, order.endpoint, runner, lifeline)
            except OSError as error:
                report.send(msgspec.msgpack.encode(WorkerBorn(0, f"could not be forked: {error.strerror}")))
            finally:
                os.close(lifeline)


def fork(orders: socket.socket, report: socket.socket, endpoint: str, runner: str, lifeline: int) -> None:
    """Fork a worker, which reports its birth itself. OSError where the system has no room for another process.

    It is forked by a child that ends at once, so that the system hands it to the nearest ancestor that takes orphans:
    the engine, which can then learn how the worker ended even if this process is no more.
    """
    is_single = len(os.listdir("/proc/self/task")) == 1
    between = os.fork()
    if between == 0:
        between = os.getpid()
        try:
            is_worker = os.fork() == 0
        except OSError as error:
            os._exit(error.errno or 1)
        if not is_worker:
            os._exit(0)
        orders.close()
        while os.getppid() == between:
            time.sleep(_HANDED_ON_S)
        with report:
            report.send(msgspec.msgpack.encode(WorkerBorn(os.getpid())))
        _become_worker(endpoint, runner, lifeline, is_single=is_single)
    _, status = os.waitpid(between, 0)
    if (reason := os.waitstatus_to_exitcode(status)) != 0:
        raise OSError(reason, os.strerror(reason))


def _become_worker(endpoint: str, runner: str, lifeline: int, *, is_single: bool) -> NoReturn:
    """What a worker started by itself does, in this process."""
    code = 1
    try:
        os.setpgid(0, 0)
        os.dup2(lifeline, 0)
        os.close(lifeline)
        if not is_single:
            module = "superinfer.executor.worker"
            os.execv(sys.executable, [sys.executable, "-P", "-m", module, "--endpoint", endpoint, "--runner", runner])
        code = run_worker(endpoint, runner)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> int:
    """Import, then fork until the engine ends."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--socket", type=int, required=True)
    arguments.add_argument("--runner", default=DEFAULT_RUNNER)
    options = arguments.parse_args()
    kinds = msgspec.msgpack.decode(read_settings(), type=list[WorkerConfig])
    die_with_parent()
    name_process("superinfer:fork")
    gc.disable()  # what is imported stays: looking for garbage among it only takes time, and unshares its memory
    try:
        prepare(options.runner, kinds)
    except SuperInferError:
        pass  # each worker will fail with the same error, and tell the engine
    except Exception:
        traceback.print_exc()
    gc.freeze()
    with socket.socket(fileno=options.socket) as orders:
        serve(orders, options.runner)
    return 0


if __name__ == "__main__":
    sys.exit(main())
