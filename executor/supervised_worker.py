"""The life of one fault domain's worker inside the engine: starting, up, ending, down, and up again."""

from __future__ import annotations

import enum
import math

from superinfer.contracts.errors import SuperInferError
from superinfer.executor.config import WorkerConfig
from superinfer.executor.idle_class import recall
from superinfer.executor.pipeline import StepPipeline
from superinfer.executor.worker_forks import ForkServer
from superinfer.executor.worker_messages import WorkerReady
from superinfer.executor.worker_process import WorkerProcess

FIRST_RESTART_S = 0.05
"""A short wait, so that the survivors get their plans before a process is started."""

MAX_RESTART_S = 30.0
MAX_START_FAILURES = 5
START_TIMEOUT_S = 300.0


class WorkerState(enum.Enum):
    """Where a worker is in its life."""

    STARTING = "starting"
    UP = "up"
    ENDING = "ending"
    DOWN = "down"


class SupervisedWorker:
    """A worker process that is started again when it dies. Nothing here blocks.

    `failures` counts its deaths since it last completed a step, `start_failures` those of them while it
    started.
    """

    def __init__(
        self,
        config: WorkerConfig,
        runner: str,
        *,
        restarts: bool,
        step_timeout_s: float,
        forks: ForkServer | None = None,
    ) -> None:
        self.config = config
        self.state = WorkerState.DOWN
        self.process: WorkerProcess | None = None
        self.pipeline = StepPipeline(step_timeout_s)
        self.kv_blocks = 0
        self.pid = 0
        self.failures = 0
        self.start_failures = 0
        self.timer_s: float | None = None
        self._runner = runner
        self._forks = forks
        self._restarts = restarts

    @property
    def domain_id(self) -> str:
        """The fault domain that this worker is."""
        return self.config.domain_id

    @property
    def may_come_back(self) -> bool:
        """False where the worker is not up and there is no reason to hope that it will be."""
        if self.state in (WorkerState.UP, WorkerState.STARTING):
            return True
        return self._restarts and self.start_failures < MAX_START_FAILURES

    def next_timer_s(self, now: float) -> float:
        """When it needs attention unasked: start or restart, hang, a step to recall, time for a plan."""
        if self.state is not WorkerState.UP:
            return self.timer_s if self.timer_s is not None else math.inf
        timers = [self.pipeline.hung_at_s, self.pipeline.patience_ends_s]
        plan_at_s = self.pipeline.plan_at_s
        if len(self.pipeline) and plan_at_s is not None and plan_at_s > now:
            timers.append(plan_at_s)
        return min((timer for timer in timers if timer is not None), default=math.inf)

    def hurry(self, now: float) -> None:
        """A step that has left its core for too long takes its share of it again."""
        ends_s = self.pipeline.patience_ends_s
        if ends_s is not None and now >= ends_s:
            self.pipeline.lost_patience(is_recalled=recall(self.pid))

    def start(self, now: float) -> None:
        """Start the process; its model loads in the background. OSError where no process can be made."""
        self.process = WorkerProcess(self.config, runner=self._runner, forks=self._forks)
        self.process.start()
        self.state = WorkerState.STARTING
        self.timer_s = now + START_TIMEOUT_S

    def try_ready(self, now: float) -> WorkerReady | None:
        """A starting worker's greeting if it has come; raises the worker's error where it cannot start."""
        assert self.process is not None
        if (ready := self.process.try_ready()) is None:
            if self.timer_s is not None and now >= self.timer_s:
                raise SuperInferError(f"the worker of domain {self.domain_id} takes too long to start")
            return None
        self.pid = ready.pid
        self.kv_blocks = ready.kv_blocks
        self.state = WorkerState.UP
        self.start_failures = 0
        self.timer_s = None
        return ready

    def fail(self) -> None:
        """Give the process up, dead or not; `reap` does the rest when it has ended."""
        assert self.process is not None
        self.pid = self.process.pid
        self.failures += 1
        self.start_failures += self.state is WorkerState.STARTING
        self.process.kill()
        self.pipeline.clear()
        self.state = WorkerState.ENDING
        self.timer_s = None

    def reap(self, now: float) -> None:
        """Once a given-up process has ended, release it and set the time of its restart."""
        if self.process is None or self.process.is_alive():
            return
        self.process.close()
        self.process = None
        self._come_down(now)

    def restart(self, now: float) -> None:
        """Start the process again; where that is impossible now, try later."""
        try:
            self.start(now)
        except OSError:
            if self.process is not None:
                self.process.close()
                self.process = None
            self.failures += 1
            self.start_failures += 1
            self._come_down(now)

    def _come_down(self, now: float) -> None:
        self.state = WorkerState.DOWN
        self.timer_s = None
        if self._restarts:
            backoff_s = min(2.0 ** (self.failures - 2), MAX_RESTART_S)
            self.timer_s = now + (FIRST_RESTART_S if self.failures <= 1 else backoff_s)

    def close(self) -> None:
        """End the process at once."""
        if self.process is not None:
            self.process.kill()
            self.process.close()
            self.process = None
        self.state = WorkerState.DOWN
        self.timer_s = None
