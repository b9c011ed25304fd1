"""Whether a request that arrives can still make it (SPEC S9), from the latency model and sums over what is live.

The sums are kept by contract, so that an estimate costs O(contracts), however many requests wait. Ahead of a request
is the live work at least as urgent as it, on the domains that may serve it; of a running request half is taken to be
done. Decodes share steps up to the sequences that a domain may run; what is beyond them waits for a place. Prompts
that wait go first. Of what will arrive meanwhile, at the rate of late, the prompts take their share of the device, and
where it is more urgent its decodes as well.

What a policy makes of that differs, so each contract has a factor that follows what requests that missed took against
what was predicted for them, and goes back to 1 with those that held and with time. A refusal lets it relax a little,
lest a contract that is never admitted stay so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from superinfer.contracts.contract import SLOContract
from superinfer.profiler.latency_model import LatencyModel, StepShape
from superinfer.scheduler.config import SchedulerConfig
from superinfer.scheduler.fault_map import DomainAssignment
from superinfer.scheduler.live_placement import LivePlacement
from superinfer.scheduler.outputs import Refusal
from superinfer.scheduler.queues import WaitingQueues
from superinfer.scheduler.sequence import SequenceState
from superinfer.scheduler.slack import allowed_s, slack_s

RATE_WINDOW_S = 20.0
MAX_BUSY = 0.9
MIN_RETRY_S = 0.05
MAX_RETRY_S = 60.0
FACTOR_GAIN = 0.1
RELAXATION = 0.02
MAX_FACTOR = 4.0
FORGET_S = 30.0
"""Time in which what misses have taught fades to a third: the load they came from may be over."""
DRAINED_SHARE = 0.25
"""Who finds a queue full is told to come again when this share of it should have been served."""


@dataclass(slots=True)
class ContractWork:
    """The live requests of one contract: how many, and their tokens as expected at admission."""

    allowed_s: float = math.inf
    live: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    arrivals_per_s: float = 0.0
    last_arrival_s: float = 0.0
    mean_prompt: float = 0.0
    mean_outputs: float = 0.0
    factor: float = 1.0
    factor_since_s: float = 0.0

    def fade(self, now: float) -> None:
        """Bring the factor nearer to 1 by the time that has gone by."""
        self.factor = 1.0 + (self.factor - 1.0) * math.exp(min(self.factor_since_s - now, 0.0) / FORGET_S)
        self.factor_since_s = now


@dataclass(frozen=True, slots=True)
class Estimate:
    """Predicted seconds from now to the first token and to the last, and between tokens."""

    first_token_s: float
    token_s: float
    total_s: float

    def times(self, factor: float) -> Estimate:
        """The same, slower by a factor."""
        return Estimate(factor * self.first_token_s, factor * self.token_s, factor * self.total_s)

    def late_s(self, sequence: SequenceState, now: float) -> float:
        """By how much the worst milestone would be missed; negative where all hold."""
        gaps = max(sequence.expected_outputs - 1, 0)
        return max(
            now + self.total_s - sequence.deadline_s,
            now + self.first_token_s - sequence.ttft_deadline_s,
            gaps * (self.token_s - sequence.tpot_s) if gaps else -math.inf,
        )


@dataclass(frozen=True, slots=True)
class Arriving:
    """What has been coming of a contract of late: requests a second, and their mean tokens in and out."""

    contract_id: str
    per_s: float
    prompt_tokens: float
    output_tokens: float


class AdmissionControl:
    """Accounts for live work, and refuses what cannot make it where the configuration says so."""

    def __init__(
        self,
        model: LatencyModel,
        config: SchedulerConfig,
        assignment: DomainAssignment,
        queues: WaitingQueues,
        placement: LivePlacement | None = None,
    ) -> None:
        self._model = model
        self._config = config
        self._assignment = assignment
        self._queues = queues
        self._placement = placement
        self._work: dict[str, ContractWork] = {}
        self._promised: dict[int, tuple[float, float]] = {}
        self._retired: set[str] = set()

    def candidates(self, contract_id: str, contracts: Mapping[str, SLOContract]) -> Iterator[str]:
        """The contract itself, then its alternative service, the alternative's, and so on, each once."""
        seen: set[str] = set()
        following: str | None = contract_id
        while following is not None and following not in seen and following in contracts:
            yield following
            seen.add(following)
            contract = contracts[following]
            following = contract.alternative_service if contract.fallback_allowed else None

    def refusal(self, sequence: SequenceState, now: float) -> Refusal | None:
        """Why a request is not admitted under the contract it has here, or None.

        What could not make it on an idle device either is admitted, and so is who finds nobody there: that is not the
        load's doing. Best effort has no deadline; only a full queue turns it away.
        """
        contract_id, limit = sequence.request.contract_id, self._config.max_waiting
        if sequence.contract.is_best_effort:
            waiting = self._queues.length(contract_id)
            if limit is None or waiting < limit:
                return None
            retry_s = _retry_s(DRAINED_SHARE * self.estimate(sequence, now).first_token_s)
            return Refusal(
                code="queue_full",
                message=f"{waiting} requests of contract {contract_id!r} wait, the limit is {limit}; "
                f"try again in {retry_s:.1f} s",
                retry_after_s=retry_s,
            )
        if self._config.admission == "accept":
            return None
        work = self._work.setdefault(contract_id, ContractWork())
        work.fade(now)
        estimate = self.estimate(sequence, now)
        late_s = estimate.times(work.factor).late_s(sequence, now)
        is_idle = not any(each.live for each in self._work.values())
        if late_s <= 0.0 or is_idle or self._slack_s(sequence, now) <= 0.0:
            self._promised[sequence.sequence_id] = now, estimate.total_s
            return None
        work.factor += RELAXATION * (1.0 - work.factor)
        retry_s = _retry_s(late_s)
        return Refusal(
            code="overloaded",
            message=f"under the present load a request of contract {contract_id!r} would be {late_s * 1e3:,.0f} ms "
            f"late; try again in {retry_s:.1f} s",
            retry_after_s=retry_s,
        )

    def admitted(self, sequence: SequenceState, now: float) -> None:
        """Count a request's work from now on."""
        self._retired.discard(sequence.request.contract_id)
        work = self._work.setdefault(sequence.request.contract_id, ContractWork())
        work.allowed_s = allowed_s(sequence)
        work.live += 1
        work.prompt_tokens += sequence.prompt_length
        work.output_tokens += sequence.expected_outputs
        faded = math.exp(min(work.last_arrival_s - now, 0.0) / RATE_WINDOW_S)
        work.arrivals_per_s = work.arrivals_per_s * faded + 1.0 / RATE_WINDOW_S
        work.last_arrival_s = now
        gain = 0.1 if work.mean_prompt else 1.0
        work.mean_prompt += gain * (sequence.prefill_left - work.mean_prompt)
        work.mean_outputs += gain * (sequence.expected_outputs - work.mean_outputs)

    def ended(self, sequence: SequenceState, now: float, *, met: bool | None) -> None:
        """A request is no longer live; one that completed (`met` is not None) shows how good its estimate was."""
        work = self._work[sequence.request.contract_id]
        work.live -= 1
        work.prompt_tokens -= sequence.prompt_length
        work.output_tokens -= sequence.expected_outputs
        admitted_s, predicted_s = self._promised.pop(sequence.sequence_id, (now, 0.0))
        if met is not None and predicted_s > 0.0:
            # A request may be made to use the time it has: only a miss says that too much was hoped for.
            ratio = 1.0 if met else min((now - admitted_s) / predicted_s, MAX_FACTOR)
            work.fade(now)
            work.factor += FACTOR_GAIN * (max(ratio, 1.0) - work.factor)
        if not work.live and sequence.request.contract_id in self._retired:
            self._retired.discard(sequence.request.contract_id)
            del self._work[sequence.request.contract_id]

    def forget(self, contract_id: str) -> None:
        """No new request of this contract will come: keep nothing of it once those that are live have ended."""
        work = self._work.get(contract_id)
        if work is not None and not work.live:
            del self._work[contract_id]
        elif work is not None:
            self._retired.add(contract_id)

    def arriving(self, now: float) -> list[Arriving]:
        """The rate of late of every contract that has had requests, and what they were like."""
        return [
            Arriving(
                contract_id,
                work.arrivals_per_s * math.exp(min(work.last_arrival_s - now, 0.0) / RATE_WINDOW_S),
                work.mean_prompt,
                work.mean_outputs,
            )
            for contract_id, work in self._work.items()
        ]

    def estimate(self, sequence: SequenceState, now: float) -> Estimate:
        """What a request that arrives now has to expect on one of the domains that may serve it; where kinds of domain
        differ, on that where it would be least late.
        """
        contract_id = sequence.request.contract_id
        placement = self._placement
        if placement is not None:
            estimates = [
                self._estimate(sequence, now, ground.model, ground.config.max_running, share)
                for ground, share in placement.choices(sequence)
            ]
            if estimates:
                return min(estimates, key=lambda each: each.late_s(sequence, now))
        domains = self._assignment.serving(contract_id) or tuple(self._assignment.home(contract_id))
        count = max(len(domains), 1)
        if self._assignment.has_map:
            return self._estimate(
                sequence, now, self._model, self._config.max_running, lambda each: self._share(domains, each) / count
            )
        return self._estimate(sequence, now, self._model, self._config.max_running, 1.0 / count)

    def _estimate(
        self,
        sequence: SequenceState,
        now: float,
        model: LatencyModel,
        max_running: int,
        share_of: Callable[[str], float] | float,
    ) -> Estimate:
        """The estimate on a domain that gets this share of the work of each contract."""
        allowed = allowed_s(sequence)
        live = prompts = waiting_prompts = outputs = busy = 0.0
        prompt_token_s, decode_s = model.prefill_token_s, model.decode_marginal_s
        length, exp = self._queues.length, math.exp
        even = share_of if isinstance(share_of, float) else None
        for other_id, work in self._work.items():
            if work.allowed_s > allowed:
                continue
            share = even if even is not None else share_of(other_id)  # type: ignore[operator]
            arriving_s = work.mean_prompt * prompt_token_s
            if work.allowed_s < allowed:
                arriving_s += work.mean_outputs * decode_s
            idle_s = now - work.last_arrival_s
            faded = exp(-idle_s / RATE_WINDOW_S) if idle_s > 0.0 else 1.0
            busy += share * work.arrivals_per_s * faded * arriving_s
            here = work.live
            if not here:
                continue
            waiting = length(other_id) / here
            live += share * here
            prompts += share * work.prompt_tokens
            waiting_prompts += share * work.prompt_tokens * waiting
            outputs += share * work.output_tokens * (1.0 + waiting) / 2.0
        context = (prompts + sequence.prompt_length + outputs) / (live + 1.0)
        batch = min(live + 1.0, max_running)
        step_s = _step_s(model, batch, context)
        spare = 1.0 - min(busy, MAX_BUSY)
        # Places come free as those that run end; until then who is beyond them waits.
        beyond = max(live + 1.0 - batch, 0.0) / max(live, 1.0)
        wait_s = waiting_prompts * prompt_token_s + beyond * outputs * step_s / batch
        first_s = (wait_s + model.prefill_s(sequence.computed, sequence.prefill_left)) / spare
        token_s = step_s / spare
        return Estimate(first_s, token_s, first_s + max(sequence.expected_outputs - 1, 0) * token_s)

    def _slack_s(self, sequence: SequenceState, now: float) -> float:
        """Slack on an idle device, the best there is."""
        if self._placement is not None:
            return self._placement.headroom.slack_s(sequence, now)
        return slack_s(sequence, self._model, now)

    def _share(self, domains: tuple[str, ...], other_id: str) -> float:
        """How much of a contract's work falls to `domains`."""
        others = self._assignment.serving(other_id)
        return sum(each in domains for each in others) / len(others) if others else 0.0


def _step_s(model: LatencyModel, batch: float, context: float) -> float:
    """One step in which `batch` sequences decode."""
    size = max(round(batch), 1)
    return model.step_s(StepShape(tokens=size, decodes=size, decode_context=round(size * context), rows=size))


def _retry_s(seconds: float) -> float:
    return min(max(seconds, MIN_RETRY_S), MAX_RETRY_S)
