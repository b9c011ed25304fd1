"""The process of one fault domain: loads the model on its own cores, then runs one step plan after the other.

Forked by the fork server, or `python -m superinfer.executor.worker --endpoint PATH --runner module:Class`, with a
WorkerConfig as msgpack on standard input. Plans that arrive while a step runs wait in the socket's queue, so that the
next step starts at once.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import Protocol

import msgspec

from superinfer.contracts.errors import ResourceError
from superinfer.executor.config import WorkerConfig
from superinfer.executor.frames import FrameSocket
from superinfer.executor.lean_torch import lean_torch_import
from superinfer.executor.lifeline import die_with_parent, read_settings
from superinfer.executor.process_name import name_process
from superinfer.executor.runtime.thread_affinity import pin_threads
from superinfer.executor.time_slices import LONG_S, ask_for_slices
from superinfer.executor.worker_messages import (
    WorkerFailed,
    WorkerGreeting,
    WorkerReady,
    error_kind,
    error_message,
)
from superinfer.scheduler.steps import StepPlan, StepResult

DEFAULT_RUNNER = "superinfer.executor.model_runner:ModelRunner"

STOP = b""
"""The frame that ends a worker; every other frame is a StepPlan."""


class Runner(Protocol):
    """What runs the steps inside a worker: an Executor with a KV cache of a known size.

    Its class may have a static method `preload(config)`, which the fork server calls before workers of that kind are
    forked; it must start no thread.
    """

    kv_blocks: int
    max_model_len: int

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step and return its result."""
        ...


def load_runner(path: str) -> Callable[[WorkerConfig], Runner]:
    """The class that `path`, "module:Class", names."""
    module, _, name = path.partition(":")
    runner: Callable[[WorkerConfig], Runner] = getattr(importlib.import_module(module), name)
    return runner


def pin_to_cores(cores: list[int]) -> None:
    """Bind this thread and those it starts from now on to `cores`; ResourceError where that cannot be."""
    if not cores:
        return
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        usable = sorted(os.sched_getaffinity(0))
        raise ResourceError(f"cores {cores}: {error.strerror}; this process may use {usable}") from error


def run_steps(runner: Runner, frames: FrameSocket, domain_id: str) -> bool:
    """Run plans until the engine says stop or ends; False where a step failed: the runner's state is then unknown."""
    decoder = msgspec.msgpack.Decoder(StepPlan)
    encoder = msgspec.msgpack.Encoder()
    while frame := frames.receive():
        plan = decoder.decode(frame)
        started_s = time.monotonic()
        try:
            result = runner.execute(plan)
        except Exception as error:
            traceback.print_exc()
            result = StepResult(
                domain_id=domain_id,
                step_id=plan.step_id,
                started_s=started_s,
                finished_s=time.monotonic(),
                error=error_message(error),
            )
        frames.send(encoder.encode(result))
        if result.error is not None:
            return False
    return True


def run_worker(endpoint: str, runner_path: str) -> int:
    """Connect to the socket at `endpoint`, load, greet, run; the exit code is 1 where the worker could not start, or
    where a step failed.

    The WorkerConfig comes on standard input, the lifeline.
    """
    config = msgspec.msgpack.decode(read_settings(), type=WorkerConfig)
    die_with_parent()
    name_process(f"superinfer:w{config.domain_id}")

    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(endpoint)
    frames = FrameSocket(connection, waits=True)
    ask_for_slices(LONG_S)  # threads that libraries start as well
    greeting: WorkerGreeting
    runner: Runner | None = None
    gc.disable()  # loading makes objects that all stay: looking for garbage among them only takes time
    try:
        pin_to_cores(config.cores)
        with lean_torch_import():
            made = load_runner(runner_path)
        runner = made(config)
        if config.cores:
            pin_threads(os.getpid(), config.cores)  # libraries may have started some of their own, bound as they like
        greeting = WorkerReady(config.domain_id, os.getpid(), runner.kv_blocks, runner.max_model_len)
    except Exception as error:
        greeting = WorkerFailed(error_kind(error), error_message(error))
        if greeting.kind != type(error).__name__:
            traceback.print_exc()
    gc.freeze()  # nor is what is loaded looked through between steps
    gc.enable()
    frames.send(msgspec.msgpack.encode(greeting))
    done = runner is not None and run_steps(runner, frames, config.domain_id)
    frames.close()
    return 0 if done else 1


def main() -> int:
    """Run the worker that the arguments name."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--endpoint", required=True)
    arguments.add_argument("--runner", default=DEFAULT_RUNNER)
    options = arguments.parse_args()
    return run_worker(options.endpoint, options.runner)


if __name__ == "__main__":
    sys.exit(main())
