"""The engine: one scheduler, its clients, and one supervised worker process per fault domain.

One thread, one loop: it sleeps in a poll until a client, a worker, a worker's death or a timer wakes it.
"""

from __future__ import annotations

import gc
import math
import sys
import time
from typing import Literal

import msgspec
import zmq

from superinfer.contracts.errors import EngineError, SuperInferError
from superinfer.executor.bandwidth_limits import BandwidthLimits
from superinfer.executor.client_hub import ClientHub
from superinfer.executor.config import EngineConfig, worker_config
from superinfer.executor.device_watch import DeviceWatch
from superinfer.executor.engine_domains import EngineDomains
from superinfer.executor.journal import JournaledScheduler, make_scheduler
from superinfer.executor.kv_pools import close_pools, make_pools
from superinfer.executor.messages import (
    Abort,
    ClientMessage,
    CoresSpared,
    DomainEvent,
    EngineFailed,
    EngineReady,
    FellBack,
    GetStats,
    Hello,
    Ping,
    Pong,
    RegisterContract,
    Rejected,
    RetireContract,
    Shutdown,
    Submit,
)
from superinfer.executor.recovery import Recovery
from superinfer.executor.runtime.base import DeviceRuntime
from superinfer.executor.runtime.cpu import CpuRuntime
from superinfer.executor.spared_cores import HeldCores, OwnCores
from superinfer.executor.supervised_worker import SupervisedWorker, WorkerState
from superinfer.executor.worker import DEFAULT_RUNNER
from superinfer.executor.worker_forks import ForkServer
from superinfer.executor.worker_messages import error_kind, error_message
from superinfer.scheduler.request import Request
from superinfer.scheduler.scheduler import Scheduler
from superinfer.scheduler.steps import StepResult
from superinfer.scheduler.warm_up import warm_up

_FLUSH_MS = 2000
_FIRST_CLIENT_S = 1.0


class Engine:
    """Moves messages between clients, scheduler and workers; decides nothing about who goes next.

    `lifeline` is a file descriptor whose end of file ends the engine. Workers are forked by `forks` where it is given,
    which inherits `kv_pools`; the engine closes both. Clients are served from the moment all workers are up for the
    first time.
    """

    def __init__(
        self,
        config: EngineConfig,
        endpoint: str,
        *,
        runner: str = DEFAULT_RUNNER,
        worker_cores: list[list[int]] | None = None,
        lifeline: int | None = None,
        runtime: DeviceRuntime | None = None,
        kv_pools: list[int] | None = None,
        forks: ForkServer | None = None,
    ) -> None:
        self._config = config
        self._domains: EngineDomains | None = None
        self._scheduler: Scheduler | None = None
        self._max_model_len = config.scheduler.max_model_len
        self._lifeline = lifeline
        self._stopping = False
        self._early: list[tuple[bytes, ClientMessage]] = []
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._hub = ClientHub(self._context, endpoint)
        cores = worker_cores or [[] for _ in range(config.domains)]
        self._recoveries: list[Recovery] = []
        if kv_pools is None:
            kv_pools = make_pools(config.domains) if config.checkpoint.enabled else []
        self._kv_pools = kv_pools
        self._forks = forks
        runtime = runtime or CpuRuntime()
        self._devices = DeviceWatch(runtime)
        self._limits = BandwidthLimits(runtime)
        self._own_cores = OwnCores()
        self._held_cores = HeldCores()
        self._workers = [
            SupervisedWorker(
                worker_config(config, i, cores[i], self._kv_pools),
                runner,
                restarts=config.restart_workers,
                step_timeout_s=config.step_timeout_s,
                forks=forks,
            )
            for i in range(config.domains)
        ]

    def run(self) -> int:
        """Serve until told to stop or the parent ends; the exit code. Clients learn why an engine failed."""
        try:
            self._domains = EngineDomains(self._config, self._workers, self._devices)
            now = time.monotonic()
            for worker in self._workers:
                worker.start(now)
            # While the workers load their models.
            warm_up(self._domains.latency_model, self._config.scheduler)
            gc.freeze()  # what is there by now stays: going through it for garbage would hold steps up for 15 ms
            while not self._stopping:
                self._wait()
                self._serve_clients()
                for worker in self._workers:
                    self._tend(worker)
                self._look_at_devices()
                if self._scheduler is not None:
                    self._plan()
                    self._spare_cores(self._scheduler)
                    self._drop_orphans(self._scheduler)
        except Exception as error:
            if self._scheduler is not None:
                now = time.monotonic()
                self._hub.deliver(self._scheduler.fail_all(now, error_message(error)), now)
            self._hub.wait_for_client(_FIRST_CLIENT_S)
            self._hub.broadcast(EngineFailed(error_message(error), error_kind(error)))
            if not isinstance(error, SuperInferError):
                raise
            return error.exit_code
        finally:
            for worker in self._workers:
                worker.close()
            if self._forks is not None:
                self._forks.close()
            close_pools(self._kv_pools)
            self._devices.close()
            self._own_cores.keep_off([])
            if isinstance(self._scheduler, JournaledScheduler):
                self._scheduler.close()
            self._context.destroy(linger=_FLUSH_MS)
        return 0

    def _wait(self) -> None:
        """Sleep until there is something to do."""
        poller = zmq.Poller()
        poller.register(self._hub.socket, zmq.POLLIN)
        if self._lifeline is not None:
            poller.register(self._lifeline, zmq.POLLIN)
        fork_server = None if self._forks is None else self._forks.sentinel
        if fork_server is not None:
            poller.register(fork_server, zmq.POLLIN)
        wake_s = math.inf
        for worker in self._workers:
            if worker.process is not None:
                is_read = worker.state in (WorkerState.STARTING, WorkerState.UP)
                if is_read and (waits_for := worker.process.waits_for()) is not None:
                    descriptor, writes = waits_for
                    poller.register(descriptor, zmq.POLLIN | (zmq.POLLOUT if writes else 0))
                poller.register(worker.process.sentinel, zmq.POLLIN)
            wake_s = min(wake_s, worker.next_timer_s(time.monotonic()))
        wake_s = min(wake_s, self._devices.next_look_s)
        timeout_s = wake_s - time.monotonic()
        ready = poller.poll(None if timeout_s == math.inf else max(0, math.ceil(timeout_s * 1000)))
        sources = {source for source, _ in ready}
        if self._lifeline in sources:
            self._stopping = True
        if self._forks is not None and fork_server in sources:
            self._forks.tend()

    def _serve_clients(self) -> None:
        for client, message in self._hub.receive():
            if isinstance(message, Shutdown):
                self._stopping = True
            elif self._scheduler is not None:
                self._handle(self._scheduler, client, message)
            elif not isinstance(message, Hello):
                self._early.append((client, message))

    def _handle(self, scheduler: Scheduler, client: bytes, message: ClientMessage) -> None:
        now = time.monotonic()
        match message:
            case Submit(request):
                self._submit(scheduler, client, request, now)
            case Abort(request_id, reason) if self._hub.owns(client, request_id):
                if (finish := scheduler.abort(request_id, now, reason)) is not None:
                    self._hub.deliver([finish], now)
            case RegisterContract() | RetireContract():
                try:
                    if isinstance(message, RegisterContract):
                        scheduler.add_contract(message.contract)
                    else:
                        scheduler.remove_contract(message.service_id)
                except SuperInferError as error:
                    print(f"superinfer engine: contract refused: {error}", file=sys.stderr)
            case GetStats():
                assert self._domains is not None
                self._hub.send(client, [self._domains.stats(scheduler, now)])
            case Hello():
                self._hub.send(client, [self._ready_message(), CoresSpared(self._held_cores.spared)])
            case Ping():
                self._hub.send(client, [Pong()])

    def _submit(self, scheduler: Scheduler, client: bytes, request: Request, now: float) -> None:
        asked_id = request.contract_id
        refusal = scheduler.add(request, now)
        if refusal is None:
            self._hub.admit(client, request.request_id)
            if asked_id and request.contract_id != asked_id:
                self._hub.send(client, [FellBack(request.request_id, request.contract_id)])
            return
        rejected = Rejected(request.request_id, refusal.code, refusal.message, refusal.retry_after_s)
        self._hub.reject(client, rejected)

    def _ready_message(self) -> EngineReady:
        assert self._domains is not None
        return EngineReady(self._domains.infos(), self._max_model_len)

    def _tend(self, worker: SupervisedWorker) -> None:
        """Take what the worker has sent; notice its readiness, its death, its hanging; start it again."""
        now = time.monotonic()
        if worker.state is WorkerState.STARTING:
            self._tend_starting(worker, now)
        elif worker.state is WorkerState.UP:
            self._tend_running(worker, now)
        if worker.state is WorkerState.ENDING:
            worker.reap(now)
        if worker.state is WorkerState.DOWN and worker.timer_s is not None and now >= worker.timer_s:
            worker.restart(now)
        if self._scheduler is not None and not worker.may_come_back:
            self._hub.deliver(self._scheduler.domain_lost(worker.domain_id, now), now)
        if not any(other.may_come_back for other in self._workers):
            raise EngineError("every worker has died and none can be restarted")

    def _tend_starting(self, worker: SupervisedWorker, now: float) -> None:
        try:
            ready = worker.try_ready(now)
        except SuperInferError as error:
            if self._scheduler is None:
                raise
            worker.fail()
            self._announce(worker, "down", now, detail=str(error))
            return
        if ready is None:
            return
        if self._scheduler is not None:
            assert self._domains is not None
            self._scheduler.domain_ready(self._domains.spec(worker), now)
            self._announce(worker, "up", now)
            return
        self._max_model_len = min(self._max_model_len, ready.max_model_len)
        if all(other.state is WorkerState.UP for other in self._workers):
            self._open()

    def _open(self) -> None:
        """All workers are up: make the scheduler and begin to serve."""
        assert self._domains is not None
        checkpoint = self._config.checkpoint
        copies = checkpoint.enabled and checkpoint.placement == "copy"
        settings = msgspec.structs.replace(
            self._config.scheduler,
            max_model_len=self._max_model_len,
            save_interval_s=checkpoint.save_interval_ms / 1e3 if copies else None,
            save_strategy=checkpoint.strategy,
        )
        self._scheduler = make_scheduler(
            self._config.journal_path,
            domains=self._domains.specs(),
            contracts=self._config.contracts,
            latency_model=self._domains.latency_model,
            config=settings,
            kinds=self._domains.kinds(),
        )
        self._hub.broadcast(self._ready_message())
        early, self._early = self._early, []
        for client, message in early:
            self._handle(self._scheduler, client, message)

    def _tend_running(self, worker: SupervisedWorker, now: float) -> None:
        process = worker.process
        assert process is not None
        alive = process.is_alive()  # before reading: what a dead worker had sent is read first
        while (result := process.try_receive()) is not None:
            if result.error is not None:
                return self._lose(worker, f"step {result.step_id} failed: {result.error}", now, isolates=True)
            self._observe(worker, result, now)
        if not alive:
            return self._lose(worker, process.describe_end(), now, isolates=not process.was_killed)
        hung_at_s = worker.pipeline.hung_at_s
        if hung_at_s is not None and now >= hung_at_s:
            return self._lose(worker, f"the worker of domain {worker.domain_id} hangs in a step", now, isolates=True)
        worker.hurry(now)
        return None

    def _observe(self, worker: SupervisedWorker, result: StepResult, now: float) -> None:
        assert self._scheduler is not None
        worker.pipeline.received(result)
        worker.failures = 0
        for recovery in [each for each in self._recoveries if each.has_started(result)]:
            self._recoveries.remove(recovery)
            self._hub.broadcast(recovery.resumed)
        self._hub.deliver(self._scheduler.observe(result, now), now)

    def _lose(self, worker: SupervisedWorker, detail: str, now: float, *, isolates: bool) -> None:
        """The worker is of no use: its requests go on elsewhere, tokens not received are recomputed.

        `isolates` where it may have died of what it ran.
        """
        assert self._scheduler is not None
        self._limits.hold(worker.pid, None)
        worker.fail()
        domain = self._scheduler.domains[worker.domain_id]
        held = [*domain.running, *domain.rotated]
        moved, outputs = self._scheduler.domain_failed(worker.domain_id, now, isolates=isolates)
        self._hub.deliver(outputs, now)
        if moved:
            self._recoveries.append(Recovery(worker.domain_id, now, held))
        self._announce(worker, "down", now, moved_requests=moved, detail=detail)

    def _look_at_devices(self) -> None:
        """Give up the workers whose device says that nothing can go on there."""
        now = time.monotonic()
        for event in self._devices.look(now):
            print(f"superinfer engine: {event.severity}: {event.detail}", file=sys.stderr)
            for worker in self._workers:
                hit = event.severity == "fatal" and self._devices.is_hit(event, worker.config.cores)
                if hit and worker.state is WorkerState.UP:
                    self._lose(worker, event.detail, now, isolates=False)

    def _announce(
        self,
        worker: SupervisedWorker,
        state: Literal["up", "down"],
        now: float,
        *,
        moved_requests: int = 0,
        detail: str = "",
    ) -> None:
        event = DomainEvent(
            domain_id=worker.domain_id,
            state=state,
            time_s=now,
            worker_pid=worker.pid,
            moved_requests=moved_requests,
            detail=detail,
        )
        self._hub.broadcast(event)

    def _plan(self) -> None:
        """Give every worker that is due its next step."""
        scheduler = self._scheduler
        assert scheduler is not None
        for worker in self._workers:
            while worker.state is WorkerState.UP and worker.process is not None:
                plan_at_s, now = worker.pipeline.plan_at_s, time.monotonic()
                if plan_at_s is None or now < plan_at_s or not scheduler.has_work(worker.domain_id):
                    break
                if (plan := scheduler.plan(worker.domain_id, now)) is None:
                    break
                if scheduler.bandwidth.is_used:
                    self._limits.hold(worker.pid, scheduler.bandwidth.left_gb_per_s(worker.domain_id, now))
                worker.process.send(plan)
                for recovery in self._recoveries:
                    recovery.planned(plan)
                sent_s = time.monotonic()
                worker.pipeline.sent(plan, sent_s, sent_s - now)

    def _spare_cores(self, scheduler: Scheduler) -> None:
        """Leave the cores of those that hold bandwidth to them, and have clients do so."""
        now = time.monotonic()
        holding = scheduler.bandwidth.holding(now)
        if holding or self._held_cores.spared:
            held = [core for worker in self._workers if worker.domain_id in holding for core in worker.config.cores]
            if self._held_cores.update(held, now):
                self._hub.broadcast(CoresSpared(self._held_cores.spared))
        self._own_cores.keep_off(self._held_cores.spared)  # each time: where it failed it is tried again

    def _drop_orphans(self, scheduler: Scheduler) -> None:
        """Free what the requests of vanished clients hold."""
        for request_id in self._hub.take_orphans():
            scheduler.abort(request_id, time.monotonic())
