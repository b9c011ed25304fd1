"""Workers that are forked: children of whoever ordered them, from a process that has imported and built nothing."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_harness import RUNNER, process_is_gone
from toy_runner import expected_output

from superinfer.contracts.errors import EngineError, ModelError
from superinfer.executor import worker_forks
from superinfer.executor.config import WorkerConfig
from superinfer.executor.worker_forks import ForkServer
from superinfer.executor.worker_process import WorkerProcess
from superinfer.scheduler.request import SamplingParams
from superinfer.scheduler.steps import NewSequence, SequenceStep, StepPlan

LIKE = [WorkerConfig(domain_id="", model_dir="toy")]

pytestmark = pytest.mark.usefixtures("toy_processes")


@pytest.fixture
def forks(toy_processes: Path) -> Iterator[ForkServer]:
    server = ForkServer(RUNNER, LIKE)
    yield server
    server.close()


def worker(forks: ForkServer, model_dir: str = "toy") -> WorkerProcess:
    return WorkerProcess(WorkerConfig(domain_id="0", model_dir=model_dir), runner=RUNNER, forks=forks)


def first_token(process: WorkerProcess) -> int:
    new = NewSequence(sequence_id=1, token_ids=[5, 6], prompt_length=2, sampling=SamplingParams(max_tokens=1))
    step = SequenceStep(sequence_id=1, start=0, count=2, new_blocks=[0])
    result = process.execute(StepPlan(domain_id="0", step_id=0, new_sequences=[new], sequences=[step]))
    return next(iter(result.tokens)).token_id


def await_ready(process: WorkerProcess) -> None:
    """As the engine does, which looks again and again."""
    while process.try_ready() is None:
        time.sleep(0.02)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_forked_workers_run_steps_as_children_of_their_own_and_are_gone_after_the_end(forks: ForkServer) -> None:
    with worker(forks) as one, worker(forks) as other:
        assert one.wait_ready(30).pid == one.pid
        assert other.wait_ready(30).pid == other.pid
        assert [first_token(one), first_token(other)] == expected_output([5, 6], 1) * 2
        assert {parent_of(one.pid), parent_of(other.pid)} == {os.getpid()}
        assert Path(f"/proc/{one.pid}/comm").read_text() == "superinfer:w0\n"
        assert len({os.getpgid(pid) for pid in (one.pid, other.pid, forks.pid, os.getpid())}) == 4
        pids = one.pid, other.pid
    assert all(process_is_gone(pid) for pid in pids)


@pytest.mark.parametrize(
    ("model_dir", "kind", "message"),
    [
        ("no-model", ModelError, "model 'no-model' does not exist; accepted: toy"),
        ("suicide", EngineError, "the worker of domain 0 exited with code 9 while it started"),
    ],
)
def test_a_forked_worker_that_cannot_start_raises_its_own_error(
    forks: ForkServer, model_dir: str, kind: type[Exception], message: str
) -> None:
    with worker(forks, model_dir) as process, pytest.raises(kind) as raised:
        process.wait_ready(30)
    assert str(raised.value) == message


def test_how_a_worker_ended_is_known_after_its_fork_server_has_ended(forks: ForkServer) -> None:
    with worker(forks) as process:
        process.wait_ready(30)
        os.kill(forks.pid, signal.SIGKILL)
        assert process_is_gone(forks.pid)
        assert first_token(process) == expected_output([5, 6], 1)[0]
        os.kill(process.pid, signal.SIGKILL)
        while process.is_alive():
            assert select.select([process.sentinel], [], [], 5.0)[0]
        assert process.was_killed
        assert process.describe_end() == "the worker of domain 0 was killed by SIGKILL"
    with worker(forks) as process:
        assert process.wait_ready(30)


def test_a_worker_that_the_server_never_forked_has_ended(forks: ForkServer) -> None:
    with worker(forks) as process:
        process.wait_ready(30)
    os.kill(forks.pid, signal.SIGSTOP)
    with worker(forks) as process:
        assert process.is_alive()
        assert process.pid == 0
        process.kill()
        with pytest.raises(EngineError, match="was not started: the process that forks workers ended"):
            process.wait_ready(30)


def test_a_forked_worker_dies_with_its_parent_while_it_hangs() -> None:
    program = f"""
import time
from superinfer.executor.config import WorkerConfig
from superinfer.executor.worker_forks import ForkServer
from superinfer.executor.worker_process import WorkerProcess
from superinfer.scheduler.steps import StepPlan
config = WorkerConfig(domain_id="0", model_dir="hanging")
forks = ForkServer({RUNNER!r}, [config])
process = WorkerProcess(config, runner={RUNNER!r}, forks=forks)
process.start()
process.wait_ready(30)
process.send(StepPlan(domain_id="0", step_id=0))
print(process.pid, forks.pid, flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    parent.kill()
    parent.wait()
    assert len(pids) == 2
    assert all(process_is_gone(pid) for pid in pids)


def test_a_server_with_threads_makes_workers_from_scratch(
    toy_processes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "threaded_runner.py").write_text(
        "import threading\n"
        "from toy_runner import ToyRunner\n"
        "class Threaded(ToyRunner): pass\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    forks = ForkServer("threaded_runner:Threaded", LIKE)
    try:
        with worker(forks) as process:
            process.wait_ready(30)
            assert first_token(process) == expected_output([5, 6], 1)[0]
            assert b"superinfer.executor.worker\0" in Path(f"/proc/{process.pid}/cmdline").read_bytes()
            assert parent_of(process.pid) == os.getpid()
    finally:
        forks.close()


def test_the_kernels_of_every_kind_of_worker_are_loaded_before_the_fork(
    toy_processes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "preloading_runner.py").write_text(
        "from pathlib import Path\n"
        "from toy_runner import ToyRunner\n"
        "class Preloading(ToyRunner):\n"
        "    loaded = []\n"
        "    @staticmethod\n"
        "    def preload(config): Preloading.loaded.append(config.dtype)\n"
        "    def __init__(self, config):\n"
        "        super().__init__(config)\n"
        f"        Path({str(tmp_path)!r}, config.domain_id).write_text(' '.join(Preloading.loaded))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    kinds = [WorkerConfig(domain_id=dtype, model_dir="toy", dtype=dtype) for dtype in ("float32", "int8")]
    forks = ForkServer("preloading_runner:Preloading", kinds)
    try:
        for kind in kinds:
            with WorkerProcess(kind, runner="preloading_runner:Preloading", forks=forks) as process:
                process.wait_ready(30)
            assert (tmp_path / kind.domain_id).read_text() == "float32 int8"
    finally:
        forks.close()


def test_a_server_that_ends_is_started_again_before_a_worker_is_wanted(
    forks: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("superinfer.executor.worker_forks.RESTART_S", 0.0)
    forks.start()
    first = forks.pid
    forks.tend()
    assert forks.pid == first
    os.kill(first, signal.SIGKILL)
    assert process_is_gone(first)
    time.sleep(0.01)
    forks.tend()
    assert forks.pid not in (0, first)


def test_a_server_that_hangs_is_ended_and_the_next_worker_comes_of_a_new_one(
    forks: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_forks, "BIRTH_S", 0.2)
    with worker(forks) as first:
        first.wait_ready(30)
        hung = forks.pid
        os.kill(hung, signal.SIGSTOP)
        with worker(forks) as second, pytest.raises(EngineError, match="was not started"):
            await_ready(second)
        assert process_is_gone(hung)
        with worker(forks) as third:
            third.wait_ready(30)
            assert [first_token(first), first_token(third)] == expected_output([5, 6], 1) * 2


def test_an_order_that_waited_for_the_imports_gets_its_time_from_the_birth_before_it(
    forks: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered_s = time.monotonic() - 10.0 * worker_forks.BIRTH_S
    with worker(forks) as first:
        assert not forks.owes_a_birth(ordered_s)
        await_ready(first)
        assert not forks.owes_a_birth(ordered_s)
        monkeypatch.setattr(worker_forks, "BIRTH_S", 0.0)
        assert forks.owes_a_birth(ordered_s)
