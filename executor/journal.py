"""What a scheduler was asked and told, call by call, on disk: with it a run can be gone through again.

A scheduler is a state machine whose calls carry the time. Repeating the calls gives the same states, so whatever a
run's record should have said can still be asked of it afterwards: how long each step was expected to take and took,
what was to be expected of a request when it came. One JSON object a line, first what the scheduler was made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from superinfer.contracts.contract import SLOContract
from superinfer.contracts.errors import UsageError
from superinfer.profiler.latency_model import LatencyModel
from superinfer.profiler.store import LatencyConstants, latency_constants
from superinfer.scheduler.config import DomainSpec, SchedulerConfig
from superinfer.scheduler.domain_kind import DomainKind
from superinfer.scheduler.outputs import FinishOutput, Output, Refusal
from superinfer.scheduler.request import Request
from superinfer.scheduler.scheduler import Scheduler
from superinfer.scheduler.steps import FinishReason, StepPlan, StepResult


class BegunKind(msgspec.Struct):
    """A kind of domain: its latency model, and its other fields by name."""

    latency: LatencyConstants
    terms: dict[str, Any]

    @classmethod
    def of(cls, kind: DomainKind) -> BegunKind:
        """What is kept of a kind."""
        terms = {field.name: getattr(kind, field.name) for field in fields(kind) if field.name != "latency_model"}
        return cls(latency_constants(kind.latency_model), terms)

    def again(self) -> DomainKind:
        """The kind as it was at first."""
        return DomainKind(latency_model=_model(self.latency), **self.terms)


class Begun(msgspec.Struct, tag=True):
    """What the scheduler was made of."""

    domains: list[DomainSpec]
    contracts: list[SLOContract]
    latency: LatencyConstants
    config: SchedulerConfig
    kinds: list[BegunKind] = []


class Added(msgspec.Struct, tag=True):
    """A request came."""

    now: float
    request: Request


class Aborted(msgspec.Struct, tag=True):
    """A request was called off."""

    now: float
    request_id: str
    reason: FinishReason


class Planned(msgspec.Struct, tag=True):
    """A domain's next step was asked for."""

    now: float
    domain_id: str


class Observed(msgspec.Struct, tag=True):
    """A step was over."""

    now: float
    result: StepResult


class Changed(msgspec.Struct, tag=True):
    """Something that a journal does not keep: whoever goes through it can go no further."""

    what: str


Entry = Begun | Added | Aborted | Planned | Observed | Changed


class JournaledScheduler(Scheduler):
    """A scheduler that writes down its calls. `path` is made anew; it is whole once `close` was called."""

    def __init__(
        self,
        path: Path,
        *,
        domains: list[DomainSpec],
        contracts: list[SLOContract],
        latency_model: LatencyModel,
        config: SchedulerConfig,
        kinds: Sequence[DomainKind] = (),
    ) -> None:
        self._file: BinaryIO = path.open("wb")
        self._is_open = False
        begun = [BegunKind.of(kind) for kind in kinds]
        self._write(Begun(domains, contracts, latency_constants(latency_model), config, begun))
        super().__init__(domains=domains, contracts=contracts, latency_model=latency_model, config=config, kinds=kinds)
        self._is_open = True

    def add(self, request: Request, now: float) -> Refusal | None:
        """As Scheduler.add."""
        self._write(Added(now, request))
        return super().add(request, now)

    def abort(self, request_id: str, now: float, reason: FinishReason = "abort") -> FinishOutput | None:
        """As Scheduler.abort."""
        self._write(Aborted(now, request_id, reason))
        return super().abort(request_id, now, reason)

    def plan(self, domain_id: str, now: float) -> StepPlan | None:
        """As Scheduler.plan."""
        self._write(Planned(now, domain_id))
        return super().plan(domain_id, now)

    def observe(self, result: StepResult, now: float) -> list[Output]:
        """As Scheduler.observe."""
        self._write(Observed(now, result))
        return super().observe(result, now)

    def domain_failed(self, domain_id: str, now: float, *, isolates: bool = False) -> tuple[int, list[Output]]:
        """As Scheduler.domain_failed."""
        self._write(Changed(f"domain {domain_id} died"))
        return super().domain_failed(domain_id, now, isolates=isolates)

    def add_contract(self, contract: SLOContract) -> None:
        """As Scheduler.add_contract."""
        if self._is_open:
            self._write(Changed(f"contract {contract.service_id} was registered"))
        super().add_contract(contract)

    def close(self) -> None:
        """Write what is still buffered."""
        self._file.close()

    def _write(self, entry: Entry) -> None:
        self._file.write(msgspec.json.encode(entry) + b"\n")


def make_scheduler(
    journal_path: str | None,
    *,
    domains: list[DomainSpec],
    contracts: list[SLOContract],
    latency_model: LatencyModel,
    config: SchedulerConfig,
    kinds: Sequence[DomainKind] = (),
) -> Scheduler:
    """A scheduler, one that keeps a journal where it has a path."""
    made_of: dict[str, Any] = {
        "domains": domains,
        "contracts": contracts,
        "latency_model": latency_model,
        "config": config,
        "kinds": kinds,
    }
    return Scheduler(**made_of) if journal_path is None else JournaledScheduler(Path(journal_path), **made_of)


def read_journal(path: Path) -> Iterator[Entry]:
    """The entries in order. Raises UsageError where the file is no journal."""
    decoder = msgspec.json.Decoder(Entry)
    try:
        with path.open("rb") as file:
            for line in file:
                yield decoder.decode(line)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path}: is no journal of a scheduler: {error}") from None


def begin(entry: Begun) -> Scheduler:
    """A scheduler as that of the journal was at first."""
    return Scheduler(
        domains=entry.domains,
        contracts=entry.contracts,
        latency_model=_model(entry.latency),
        config=entry.config,
        kinds=[kind.again() for kind in entry.kinds],
    )


def repeat(scheduler: Scheduler, entry: Entry) -> list[Output]:
    """Make an entry's call; what came of an observation. Raises UsageError at a change that no journal keeps."""
    match entry:
        case Added(now, request):
            scheduler.add(request, now)
        case Aborted(now, request_id, reason):
            scheduler.abort(request_id, now, reason)
        case Planned(now, domain_id):
            scheduler.plan(domain_id, now)
        case Observed(now, result):
            return scheduler.observe(result, now)
        case Changed(what):
            raise UsageError(f"the journal cannot be gone through any further: {what}")
    return []


def _model(latency: LatencyConstants) -> LatencyModel:
    constants = msgspec.structs.asdict(latency)
    constants["residual_quantiles"] = dict(latency.residual_quantiles)
    return LatencyModel(**constants)
