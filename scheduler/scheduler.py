"""The scheduler: a state machine over requests, domains and steps. Every call takes `now`; nothing here sleeps or
reads a clock.

Steps of a domain run in the order in which they were planned, and a step may be planned while the one before is
still in flight. Hence blocks can be reused by the next plan as soon as they are given back: whatever still writes
to them runs earlier.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from superinfer.contracts.contract import BEST_EFFORT_ID, SLOContract, best_effort_contract
from superinfer.contracts.errors import ContractConflictError
from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.accounts import Accounts
from superinfer.scheduler.admission import AdmissionControl
from superinfer.scheduler.bandwidth import BandwidthGate
from superinfer.scheduler.bandwidth_limits import limit_bandwidth, pacing
from superinfer.scheduler.blocks import KVMemory
from superinfer.scheduler.columns import SequenceTable
from superinfer.scheduler.commit import commit_tokens
from superinfer.scheduler.config import DomainSpec, SchedulerConfig
from superinfer.scheduler.contract_book import ContractBook
from superinfer.scheduler.domain import NOT_PACED, DomainState
from superinfer.scheduler.domain_kind import DomainKind, speed_rank
from superinfer.scheduler.failover import state_of_ready, vacate
from superinfer.scheduler.fault_map import DomainAssignment
from superinfer.scheduler.kernels import land
from superinfer.scheduler.learned_speed import LearnedSpeeds
from superinfer.scheduler.live_placement import LivePlacement
from superinfer.scheduler.outputs import FinishOutput, Output, Refusal
from superinfer.scheduler.planned_step import send_off
from superinfer.scheduler.policies.base import Policy
from superinfer.scheduler.policies.registry import make_policy
from superinfer.scheduler.prefix_cache import extend_names, find_prefix, share
from superinfer.scheduler.queues import WaitingQueues
from superinfer.scheduler.request import Request
from superinfer.scheduler.request_checks import unfit
from superinfer.scheduler.sequence import SequenceState, Status
from superinfer.scheduler.stats import SchedulerStats, snapshot
from superinfer.scheduler.step_builder import StepBuilder
from superinfer.scheduler.step_memory import Ground
from superinfer.scheduler.steps import FinishReason, StepPlan, StepResult
from superinfer.scheduler.suspects import Suspects


class Scheduler:
    """Requests in, step plans out, step results in, tokens out. One instance for all domains.

    `kinds` are those of unequal domains, each with a latency model of its own; that of the fastest then takes the place
    of `latency_model`. Without kinds all domains are equal.
    """

    def __init__(
        self,
        *,
        domains: list[DomainSpec],
        contracts: list[SLOContract],
        latency_model: LatencyModel,
        config: SchedulerConfig,
        policy: Policy | None = None,
        kinds: Sequence[DomainKind] = (),
    ) -> None:
        self.config = config
        if kinds:
            latency_model = min((kind.latency_model for kind in kinds), key=speed_rank)
        self.model = latency_model
        self.speeds = LearnedSpeeds(latency_model)
        self.policy = policy or make_policy(latency_model, config)
        self.table = SequenceTable()
        self.domains: dict[str, DomainState] = {}
        self.assignment = DomainAssignment(config.fault_domains, [domain.domain_id for domain in domains])
        self._memories: dict[str, KVMemory] = {}
        if kinds:
            self.placement: LivePlacement | None = LivePlacement(
                kinds, self.policy, self.table, self.assignment, self.domains, self._memories, config
            )
            self.queues: WaitingQueues = self.placement.queues
            self.assignment.permits = self._permits
        else:
            self.placement = None
            self.queues = WaitingQueues(self.policy.waiting_key, config.block_size)
        self._ground = Ground.of(self.table, self.queues, latency_model, config)
        self.admission = AdmissionControl(latency_model, config, self.assignment, self.queues, self.placement)
        self.accounts = Accounts(config.budget_window_s)
        self.bandwidth = BandwidthGate()
        self._contracts = ContractBook()
        self._by_request: dict[str, SequenceState] = {}
        self._by_sequence: dict[int, SequenceState] = {}
        self._suspects = Suspects()
        self._lost: set[str] = set()
        self._next_sequence_id = 0
        self._steps = 0
        self._output_tokens = 0
        self.add_contract(best_effort_contract())
        for contract in contracts:
            self.add_contract(contract)
        for domain in domains:
            self.domain_ready(domain, 0.0)

    def add_contract(self, contract: SLOContract) -> None:
        """Requests may use the contract (and `<id>/<sub>`) from now on; those in flight keep the version they have.

        A newer version takes the older one's place, sub-tasks included.
        """
        gone, present = self._contracts.add(contract)
        self._retire(gone)
        if self.placement is not None:
            self.placement.kinds.changed()
        for contract_id in present:
            self.assignment.forget(contract_id)
            self.bandwidth.declare(contract_id, self._contracts.by_id[contract_id])

    def remove_contract(self, service_id: str) -> None:
        """Refuse new requests of the contract and its sub-tasks; those in flight keep the version they have.

        Unknown ids are ignored. Raises ContractConflictError for the contract of requests that name none.
        """
        if service_id == BEST_EFFORT_ID:
            raise ContractConflictError(f"contract {service_id!r} is of requests that name none; it cannot be retired")
        self._retire(self._contracts.drop(service_id))

    def add(self, request: Request, now: float) -> Refusal | None:
        """Admit a request, or say why not; a refused one is only counted.

        Where load would make it late and its contract allows a fallback, it is admitted under the alternative service:
        `request.contract_id` is then that.
        """
        request.contract_id = request.contract_id or BEST_EFFORT_ID
        self.speeds.speak_for_all()
        contract = self._contracts.by_id.get(request.contract_id)
        if refusal := self._refusal(request, contract):
            return refusal
        assert contract is not None
        admitted = self._admit(request, contract, now)
        if isinstance(admitted, Refusal):
            return admitted
        sequence = admitted
        self._next_sequence_id += 1
        self.admission.admitted(sequence, now)
        self._by_request[request.request_id] = sequence
        self._by_sequence[sequence.sequence_id] = sequence
        self.policy.on_arrival(sequence, now)
        self.queues.push(sequence)
        if self.placement is not None:
            self.placement.arrived(sequence)
        return None

    def _admit(self, request: Request, contract: SLOContract, now: float) -> SequenceState | Refusal:
        """The request under its contract, or under the first alternative that can still be held."""
        asked_id = request.contract_id
        refused: Refusal | None = None
        for contract_id in self.admission.candidates(asked_id, self._contracts.by_id):
            request.contract_id = contract_id
            sequence = SequenceState(self._next_sequence_id, request, self._contracts.by_id[contract_id], self.table)
            if self.placement is not None and not self.placement.headroom.with_room_for(sequence):
                self.table.release(sequence.row)  # an alternative service that asks for what no domain has
                continue
            sequence.expected_outputs = self.accounts.expected_outputs(request)
            if self.config.prefix_cache:
                self._look_up(sequence)
            refusal = self.admission.refusal(sequence, now)
            if refusal is None:
                if contract_id != asked_id:
                    self.accounts.fell_back(request.request_id, asked_id, contract)
                return sequence
            self.table.release(sequence.row)
            refused = refused or refusal
        request.contract_id = asked_id
        self.accounts.refused(asked_id, contract, now)
        assert refused is not None
        return refused

    def adopt(self, sequence: SequenceState, key: float) -> None:
        """A request that was admitted, and may run, elsewhere, by these rules: it is this scheduler's from now on. One
        that waits does so by `key`.
        """
        self.admission.admitted(sequence, sequence.arrival_s)
        self._by_request[sequence.request.request_id] = sequence
        self._by_sequence[sequence.sequence_id] = sequence
        if sequence.status is Status.WAITING:
            self.queues.push_by(key, sequence)

    @property
    def contracts(self) -> Mapping[str, SLOContract]:
        """Every contract and every sub-task that requests may use, by id."""
        return self._contracts.by_id

    @property
    def next_sequence_id(self) -> int:
        """The id of the next sequence; ids are never used again, but some may be left out."""
        return self._next_sequence_id

    @next_sequence_id.setter
    def next_sequence_id(self, sequence_id: int) -> None:
        self._next_sequence_id = sequence_id

    def abort(self, request_id: str, now: float, reason: FinishReason = "abort") -> FinishOutput | None:
        """End a request now and free what it holds; None for an unknown id."""
        sequence = self._by_request.get(request_id)
        return None if sequence is None else self._finish(sequence, now, reason)

    def has_work(self, domain_id: str) -> bool:
        """Whether a step of this domain could do something now."""
        domain = self.domains[domain_id]
        if not domain.is_up:
            return False
        return bool(
            self._may_start(domain_id)
            or domain.rotated
            or domain.finished
            or any(not s.is_done_planning for s in domain.running.values())
        )

    def in_flight(self, domain_id: str) -> int:
        """Steps of the domain that are planned and not observed."""
        return len(self.domains[domain_id].in_flight)

    def plan(self, domain_id: str, now: float) -> StepPlan | None:
        """The next step of a domain, or None where there is nothing to do."""
        domain = self.domains[domain_id]
        if not domain.is_up:
            return None
        self.speeds.speak_for(domain_id)
        gate = self.bandwidth if self.bandwidth.is_used else None
        builder = StepBuilder(domain, self.ground_of(domain_id), now, domains_up=len(self.domains_up), gate=gate)
        if self.assignment.has_map:
            self.queues.hidden = self.assignment.hidden(domain_id, self.queues.contract_ids())
        if self.placement is not None:
            self.placement.queues.look_from(domain_id)
        if gate is not None:
            limit_bandwidth(builder, gate)
        builder.save()
        if domain.running or domain.rotated or self.queues.count:
            self.policy.compose(builder)
        if self.placement is not None:
            self.placement.queues.note_plan(domain_id, now, builder.step_s)
            self.placement.queues.look_from(None)
        self.queues.hidden = frozenset()
        builder.close()
        moves = builder.rotate_out_list or builder.rotate_in_list or builder.saves or builder.partial_saves
        if not (builder.steps or domain.finished or moves):
            return None
        plan = send_off(builder, NOT_PACED if gate is None else pacing(builder, gate))
        self._steps += 1
        return plan

    def observe(self, result: StepResult, now: float) -> list[Output]:
        """Commit a step's tokens. Results of steps that are not in flight (of a domain that died since) are ignored."""
        domain = self.domains[result.domain_id]
        step = domain.in_flight.pop(result.step_id, None)
        if step is None:
            return []
        self.speeds.speak_for(result.domain_id)
        if step.lent:
            domain.memory.give_back(step.lent)
        if step.batch.sequence_ids:
            land(self.table.counts, step.batch.rows, step.batch.ids)
        for sequence in step.prefills:
            sequence.in_flight = max(sequence.in_flight - 1, 0)
        if self.config.prefix_cache:
            for sequence, end in zip(step.prefills, step.ends, strict=True):
                if sequence.domain is domain:
                    share(sequence, domain, end, self.config.block_size)
        if step.shape.tokens and not step.pacing.is_slow_on_purpose:
            self.speeds.learn(result.domain_id, step.shape, result.duration_s)
        if self.bandwidth.is_used or step.pacing is not NOT_PACED:
            self.bandwidth.observed(step, result, self.ground_of(result.domain_id).model, now)
        taken = commit_tokens(self.table, self._by_sequence, step.batch, result, now)
        if not taken.token_ids:
            return []
        self._output_tokens += len(taken.token_ids)
        if self._suspects:
            self._suspects.clear()
        outputs: list[Output] = [taken]
        # An end counts with its token.
        with_token = set(taken.request_ids) if result.ends else ()
        for sequence_id, reason in result.ends:
            owner = self._by_sequence.get(sequence_id)
            if owner is not None and owner.request.request_id in with_token:
                outputs.append(self._finish(owner, now, reason))
        return outputs

    def skipped(self, domain_id: str, steps: int, tokens: int) -> None:
        """Count steps that were taken without `plan` and `observe`, and the tokens that came of them."""
        self.domains[domain_id].next_step_id += steps
        self._steps += steps
        self._output_tokens += tokens

    def ground_of(self, domain_id: str) -> Ground:
        """What steps of a domain are built on: its kind's latency model and limits."""
        return self._ground if self.placement is None else self.placement.ground_of(domain_id)

    @property
    def domains_up(self) -> list[DomainState]:
        """The domains that serve."""
        return [each for each in self.domains.values() if each.is_up]

    def completed(self, sequences: Iterable[SequenceState], now: float) -> list[FinishOutput]:
        """A step is over that gave tokens to whoever was suspected and in it, and with which these sequences end."""
        if self._suspects:
            self._suspects.clear()
        return [self._finish(each, now, "length") for each in sequences]

    @property
    def has_suspects(self) -> bool:
        """Whether any sequence is suspected of the death of a worker."""
        return bool(self._suspects)

    def sequence(self, sequence_id: int) -> SequenceState | None:
        """The sequence of this id, while it has not ended."""
        return self._by_sequence.get(sequence_id)

    @property
    def open_sequences(self) -> Iterable[SequenceState]:
        """Those admitted that have not ended."""
        return self._by_request.values()

    def domain_failed(self, domain_id: str, now: float, *, isolates: bool = False) -> tuple[int, list[Output]]:
        """A domain died: its requests wait again, with the KV that outlives it where its memory does.

        Returns how many moved, and the ends of those that are held to kill their workers. Each in a step in flight is
        suspected until it has another token. Where the death may have been a request's doing, the suspected ones
        run one at a time on each domain (`isolates`), so that a second death tells which one it is.
        """
        domain = self.domains[domain_id]
        domain.is_up = False
        self._update_assignment()
        self.bandwidth.domain_failed(domain_id, now)
        moved = 0
        ended: list[Output] = []
        for each in vacate(domain, self._suspects, self.config.block_size, isolates=isolates):
            sequence = each.sequence
            if each.is_poison:
                error = f"the worker died {sequence.domain_deaths} times while it ran this request"
                ended.append(self._finish(sequence, now, "error", error))
                continue
            sequence.restart(each.kept)
            sequence.enter_stage("migration", now)
            self.queues.push(sequence)
            moved += 1
        return moved, ended

    def _look_up(self, sequence: SequenceState) -> None:
        """How much of a new request's prompt is in memory now: what is expected of its prefill."""
        extend_names(sequence.block_names, sequence.request.prompt_token_ids, self.config.block_size)
        domain_ids: Iterable[str] = self.domains
        if self.placement is not None:
            domain_ids = self.placement.permitted(sequence.contract, domain_ids)
        found = (find_prefix(sequence, self.domains[each], self.config.block_size) for each in domain_ids)
        sequence.computed = max((kept.tokens for kept in found if kept is not None), default=0)

    def domain_ready(self, domain: DomainSpec, now: float) -> None:
        """A domain is up, or up again: with an empty cache unless its memory has outlived it."""
        previous = self.domains.get(domain.domain_id)
        self._lost.discard(domain.domain_id)
        layout = precision = ""
        if self.placement is not None:
            kind = self.placement.add(domain)
            self.speeds.assign(domain.domain_id, kind.latency_model)
            layout, precision = kind.kv_layout, kind.precision
        memory = self._memories.setdefault(layout, KVMemory())
        host_blocks = self.ground_of(domain.domain_id).config.host_blocks
        self.domains[domain.domain_id] = state_of_ready(domain, memory, host_blocks, previous, precision)
        self.bandwidth.domain_ready(domain, now)
        self._update_assignment()

    def domain_lost(self, domain_id: str, now: float) -> list[Output]:
        """A dead domain will hardly come back: the ends of requests whose contracts permit no kind of those left."""
        placement, ended = self.placement, list[Output]()
        if placement is None or domain_id in self._lost:
            return ended
        self._lost.add(domain_id)
        for sequence in list(self._by_request.values()):
            if not placement.permitted(sequence.contract, self._left_for(sequence.request.contract_id)):
                error = placement.refusal(sequence.request.contract_id).message
                ended.append(self._finish(sequence, now, "error", f"domain {domain_id} is lost; {error}"))
        return ended

    def fail_all(self, now: float, error: str) -> list[Output]:
        """End every request with an error: the engine cannot go on."""
        return [self._finish(s, now, "error", error) for s in list(self._by_request.values())]

    def stats(self, now: float) -> SchedulerStats:
        """A snapshot for people and metrics."""
        return snapshot(
            now,
            self.domains_up,
            self._by_request.values(),
            self.accounts.counts,
            budgets=self.accounts.budgets,
            waiting=self.queues.count,
            steps=self._steps,
            output_tokens=self._output_tokens,
            reserved_gb_per_s=self.bandwidth.reserved_gb_per_s(now),
        )

    def _retire(self, contract_ids: Iterable[str]) -> None:
        """Keep nothing of contracts whose requests come no more."""
        for contract_id in contract_ids:
            self.accounts.forget(contract_id)
            self.admission.forget(contract_id)
            if self.placement is not None:
                self.placement.forget(contract_id)
            self.policy.on_retire(contract_id)

    def _update_assignment(self) -> None:
        self.assignment.set_up([each.domain_id for each in self.domains.values() if each.is_up])
        if self.placement is not None:
            self.placement.kinds.changed()

    def _may_start(self, domain_id: str) -> bool:
        """Whether a request waits that this domain may serve."""
        if self.placement is not None:
            return self.placement.may_start(domain_id)
        if not self.queues.count or not self.assignment.has_map:
            return self.queues.count > 0
        return any(domain_id in self.assignment.serving(each) for each in self.queues.contract_ids())

    def _refusal(self, request: Request, contract: SLOContract | None) -> Refusal | None:
        if contract is None:
            known = ", ".join(sorted(self._contracts.by_id))
            return Refusal(
                code="unknown_contract",
                message=f"contract {request.contract_id!r} is not registered; registered: {known}",
            )
        home_ids = self.assignment.home(request.contract_id)
        if refusal := self.bandwidth.refusal(request.contract_id, home_ids):
            return refusal
        if request.request_id in self._by_request:
            return Refusal(
                code="duplicate_id",
                message=f"request id {request.request_id!r} is in use by a running request",
            )
        if self.placement is not None:
            home_ids = self.placement.permitted(contract, self._left_for(request.contract_id))
            if not home_ids:
                return self.placement.refusal(request.contract_id)
        home = (self.domains[each] for each in home_ids if each in self.domains)
        return unfit(request, self.config, max((domain.device_blocks.total for domain in home), default=0))

    def _left_for(self, contract_id: str) -> list[str]:
        """The domains that may ever serve a contract and are not lost."""
        return [each for each in self.assignment.reachable(contract_id) if each not in self._lost]

    def _permits(self, contract_id: str, domain_id: str) -> bool:
        """Whether a contract may run on a domain at all, as far as is known of both."""
        contract = self._contracts.by_id.get(contract_id)
        if contract is None or self.placement is None or domain_id not in self.domains:
            return True
        return bool(self.placement.permitted(contract, [domain_id]))

    def _finish(
        self, sequence: SequenceState, now: float, reason: FinishReason, error: str | None = None
    ) -> FinishOutput:
        request, domain = sequence.request, sequence.domain
        self.queues.remove(sequence)
        self.bandwidth.left(sequence, now)
        if domain is not None and sequence.known_to_worker:
            if self.config.prefix_cache and reason in ("stop", "length"):
                known = sequence.prompt_length + sequence.committed
                share(sequence, domain, known - 1, self.config.block_size)
            domain.memory.give_back(sequence.blocks)
            domain.host_blocks.give_back(sequence.host_blocks)
            domain.running.pop(sequence.sequence_id, None)
            domain.rotated.pop(sequence.sequence_id, None)
            domain.finished.append(sequence.sequence_id)
        sequence.status = Status.FINISHED
        sequence.domain = None
        del self._by_request[request.request_id]
        del self._by_sequence[sequence.sequence_id]
        self._suspects.forget(sequence)
        completed = reason in ("stop", "length")
        met = sequence.met(now) if completed else None
        self.admission.ended(sequence, now, met=met)
        if self.placement is not None:
            self.placement.ended(sequence, met=met)
        self.accounts.ended(sequence, now, reason, met)
        self.policy.on_finish(sequence, now)
        stages = sequence.closed_stages(now)
        sequence.leave_table()
        return FinishOutput(
            request_id=request.request_id,
            contract_id=request.contract_id,
            reason=reason,
            stages=stages,
            output_tokens=sequence.committed,
            domain_ids=sequence.domain_ids,
            met=met,
            error=error,
            first_token_s=math.nan if sequence.first_token_s is None else sequence.first_token_s,
            last_token_s=sequence.last_token_s,
            longest_gap_s=sequence.longest_gap_s,
            cached_tokens=sequence.cached_tokens,
        )
