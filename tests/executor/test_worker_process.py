"""A worker process: its greeting, its steps, its depth-two queue, and that nothing of it stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from engine_harness import process_is_gone
from toy_runner import expected_output

from superinfer.contracts.errors import EngineError, ModelError, ResourceError
from superinfer.executor.config import WorkerConfig
from superinfer.executor.worker_process import WorkerProcess
from superinfer.scheduler.request import SamplingParams
from superinfer.scheduler.steps import NewSequence, SequenceStep, StepPlan, StepResult

RUNNER = "toy_runner:ToyRunner"


pytestmark = pytest.mark.usefixtures("toy_processes")


def worker(model_dir="toy", **options) -> WorkerProcess:
    return WorkerProcess(WorkerConfig(domain_id="0", model_dir=model_dir, **options), runner=RUNNER)


def plan(step_id: int, **parts) -> StepPlan:
    return StepPlan(domain_id="0", step_id=step_id, **parts)


def prefill(step_id: int, prompt: list[int], max_tokens: int) -> StepPlan:
    new = NewSequence(
        sequence_id=1,
        token_ids=prompt,
        prompt_length=len(prompt),
        sampling=SamplingParams(max_tokens=max_tokens),
    )
    step = SequenceStep(sequence_id=1, start=0, count=len(prompt), new_blocks=[0, 1])
    return plan(step_id, new_sequences=[new], sequences=[step])


def decode(step_id: int) -> StepPlan:
    return plan(step_id, decodes=[1])


def receive(process: WorkerProcess, count: int) -> list[StepResult]:
    results: list[StepResult] = []
    deadline = time.monotonic() + 10
    while len(results) < count and time.monotonic() < deadline:
        if (result := process.try_receive()) is not None:
            results.append(result)
        else:
            time.sleep(0.01)
    return results


def test_a_worker_greets_runs_steps_and_leaves_neither_process_nor_socket_file(toy_processes):
    with worker() as process:
        ready = process.wait_ready(30)
        assert (ready.domain_id, ready.pid, ready.kv_blocks) == ("0", process.pid, 256)
        results = [process.execute(prefill(0, [5, 6, 7], 3))]
        results += [process.execute(decode(step)) for step in (1, 2)]
        pid = process.pid
    tokens = [token for result in results for token in result.tokens]
    assert [token.token_id for token in tokens] == expected_output([5, 6, 7], 3)
    assert [(token.output_index, token.finish) for token in tokens] == [(0, None), (1, None), (2, "length")]
    assert process_is_gone(pid)
    assert list(toy_processes.iterdir()) == []


def test_a_second_plan_sent_while_the_first_runs_starts_without_delay():
    with worker("toy:0.05") as process:
        process.wait_ready(30)
        process.execute(plan(0))
        gaps = []
        for step in range(1, 11, 2):
            process.send(plan(step))
            process.send(plan(step + 1))
            first, second = receive(process, 2)
            gaps.append(second.started_s - first.finished_s)
    assert sorted(gaps)[len(gaps) // 2] < 0.005


def test_a_worker_is_pinned_to_its_cores():
    core = max(os.sched_getaffinity(0))
    with worker(cores=[core]) as process:
        process.wait_ready(30)
        assert os.sched_getaffinity(process.pid) == {core}


@pytest.mark.parametrize(
    ("model_dir", "options", "kind", "message"),
    [
        ("no-model", {}, ModelError, "model 'no-model' does not exist; accepted: toy"),
        ("no-memory", {}, ResourceError, "KV cache: 2 GB asked for, 1 GB free"),
        ("bug", {}, EngineError, "RuntimeError: the runner has a bug"),
        ("suicide", {}, EngineError, "the worker of domain 0 exited with code 9 while it started"),
        ("toy", {"cores": [4000]}, ResourceError, "cores [4000]: Invalid argument"),
    ],
)
def test_a_worker_that_cannot_start_raises_its_own_error_in_one_line(toy_processes, model_dir, options, kind, message):
    with worker(model_dir, **options) as process:
        with pytest.raises(kind) as raised:
            process.wait_ready(30)
        pid = process.pid
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)
    assert process_is_gone(pid)
    assert list(toy_processes.iterdir()) == []


def test_an_exception_in_a_step_is_reported_in_one_line_and_ends_the_worker():
    with worker("failing") as process:
        process.wait_ready(30)
        process.send(prefill(0, [29_999], 1))
        (result,) = receive(process, 1)
        assert result.error == "RuntimeError: token 29999 breaks the toy"
        assert process_is_gone(process.pid)
        assert not process.is_alive()


def test_sigkill_of_the_worker_ends_a_waiting_execute_with_an_error():
    with worker("hanging") as process:
        process.wait_ready(30)
        process.send(plan(0))
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(EngineError, match="the worker of domain 0 was killed by SIGKILL in step 1"):
            process.execute(plan(1))


def test_a_hanging_worker_dies_with_its_parent(toy_processes):
    program = f"""
import time
from superinfer.executor.config import WorkerConfig
from superinfer.executor.worker_process import WorkerProcess
from superinfer.scheduler.steps import StepPlan
process = WorkerProcess(WorkerConfig(domain_id="0", model_dir="hanging"), runner={RUNNER!r})
process.start()
process.wait_ready(30)
process.send(StepPlan(domain_id="0", step_id=0))
print(process.pid, flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    assert process_is_gone(pid)
    assert list(toy_processes.iterdir()) == []


def test_a_plan_for_a_worker_that_is_not_ready_is_an_error():
    with worker() as process, pytest.raises(EngineError, match="not ready"):
        process.send(plan(0))


def test_a_plan_for_a_dead_worker_is_lost_without_an_exception():
    with worker() as process:
        process.wait_ready(30)
        os.kill(process.pid, signal.SIGKILL)
        assert process_is_gone(process.pid)
        time.sleep(0.05)
        process.send(plan(0))
        assert process.try_receive() is None
