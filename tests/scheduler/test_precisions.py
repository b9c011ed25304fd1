"""Domains whose weights have several precisions and whose KV lies alike: what passes from one to the other."""

from __future__ import annotations

from unequal import Clockwork, asks_for, contract, kind, request, started, unequal_scheduler

from superinfer.scheduler.config import DomainSpec
from superinfer.scheduler.domain_kind import DomainKind
from superinfer.scheduler.fault_map import HomeAndBackup
from superinfer.scheduler.outputs import FinishOutput
from superinfer.scheduler.scheduler import Scheduler

STRICT = contract("strict", 60_000.0)
TOLERANT = contract("tolerant", 60_000.0, precision_loss_allowed=True)
DOMAINS = (DomainSpec("exact", 200, kind="exact", segment=0), DomainSpec("rounded", 200, kind="rounded", segment=1))
SPARE = DomainSpec("spare", 200, kind="exact", segment=2)
PROMPT = 64


def kinds() -> list[DomainKind]:
    """The rounded kind is the faster one; either reads the other's KV."""
    return [
        kind("exact", 2.0, precision="float32", kv_layout="float32"),
        kind("rounded", 1.0, precision="int8", loses_precision=True, kv_layout="float32"),
    ]


def scheduler(*domains: DomainSpec, **config: object) -> Scheduler:
    config.setdefault("prefix_cache", True)
    return unequal_scheduler([STRICT, TOLERANT], kinds(), domains or DOMAINS, **config)


def cached(scheduler: Scheduler, clock: Clockwork, name: str, contract_id: str, domain_id: str) -> int:
    """Tokens of the prompt, the same in every request, that a new request of a domain need not compute."""
    assert scheduler.add(request(name, contract_id, clock.now, prompt=PROMPT, outputs=1), clock.now) is None
    plan = clock.step(domain_id)
    assert plan is not None
    return plan.new_sequences[0].computed


def test_a_prefix_is_shared_within_a_precision_and_never_beyond() -> None:
    ours = scheduler()
    clock = Clockwork(ours)
    assert cached(ours, clock, "a", "tolerant", "rounded") == 0
    assert cached(ours, clock, "b", "tolerant", "rounded") == PROMPT - 16
    assert cached(ours, clock, "c", "strict", "exact") == 0
    assert cached(ours, clock, "d", "strict", "exact") == PROMPT - 16


def test_what_one_precision_began_and_another_went_on_with_is_shared_with_nobody() -> None:
    ours = scheduler()
    clock = Clockwork(ours)
    ours.add(request("moves", "tolerant", prompt=PROMPT, outputs=40), 0.0)
    assert started(clock.step("rounded")) == 1
    ours.domain_failed("rounded", clock.now)
    plan = clock.step("exact")
    assert plan is not None
    assert plan.new_sequences[0].computed == PROMPT
    ours.abort("moves", clock.now, "stop")
    assert cached(ours, clock, "strict", "strict", "exact") == 0


def test_what_is_computed_anew_in_another_precision_is_shared_there() -> None:
    ours = unequal_scheduler(
        [STRICT, TOLERANT],
        [kinds()[0], kind("rounded", 1.0, precision="int8", loses_precision=True, kv_layout="other")],
        DOMAINS,
        prefix_cache=True,
    )
    clock = Clockwork(ours)
    ours.add(request("moves", "tolerant", prompt=PROMPT, outputs=40), 0.0)
    clock.step("rounded")
    ours.domain_failed("rounded", clock.now)
    clock.step("exact")
    ours.abort("moves", clock.now, "stop")
    assert cached(ours, clock, "strict", "strict", "exact") == PROMPT - 16


def test_a_request_that_no_domain_left_may_serve_ends_with_one_error_and_others_go_on() -> None:
    ours = scheduler()
    clock = Clockwork(ours)
    for name in ("strict", "tolerant"):
        ours.add(request(name, name), 0.0)
    clock.step("exact")
    ours.domain_failed("exact", clock.now)
    (end,) = ours.domain_lost("exact", clock.now)
    assert isinstance(end, FinishOutput)
    assert (end.request_id, end.reason) == ("strict", "error")
    assert end.error is not None
    assert end.error.startswith("domain exact is lost; contract 'strict': no domain has the devices and the precision")
    refusal = ours.add(request("late", "strict"), clock.now)
    assert refusal is not None
    assert refusal.code == "no_domain"
    assert ours.domain_lost("exact", clock.now) == []
    assert started(clock.step("rounded")) == 1


def test_a_lost_domain_that_comes_back_after_all_serves_again() -> None:
    ours = scheduler()
    ours.domain_failed("exact", 0.0)
    ours.domain_lost("exact", 0.0)
    ours.domain_ready(DOMAINS[0], 1.0)
    assert ours.add(request("late", "strict", 1.0), 1.0) is None
    assert started(ours.plan("exact", 1.0)) == 1


def test_nobody_ends_while_a_domain_of_the_same_kind_is_left() -> None:
    ours = scheduler(*DOMAINS, SPARE)
    ours.add(request("a", "strict"), 0.0)
    Clockwork(ours).step("exact")
    ours.domain_failed("exact", 1.0)
    assert ours.domain_lost("exact", 1.0) == []
    assert started(ours.plan("spare", 1.0)) == 1


def test_the_backup_of_a_dead_home_is_the_first_that_the_contract_permits() -> None:
    ours = scheduler(*DOMAINS, SPARE, fault_domains={"strict": HomeAndBackup(("exact",), ("rounded", "spare"))})
    ours.add(request("a", "strict"), 0.0)
    ours.domain_failed("exact", 0.0)
    assert not ours.has_work("rounded")
    assert started(ours.plan("spare", 0.0)) == 1


def test_a_new_version_of_a_contract_moves_its_backup() -> None:
    ours = scheduler(*DOMAINS, SPARE, fault_domains={"strict": HomeAndBackup(("exact",), ("rounded", "spare"))})
    ours.domain_failed("exact", 0.0)
    assert list(ours.assignment.serving("strict")) == ["spare"]
    ours.add_contract(contract("strict", 60_000.0, precision_loss_allowed=True, version=2))
    assert list(ours.assignment.serving("strict")) == ["rounded"]


def test_a_home_that_a_contract_does_not_permit_is_as_one_that_is_down() -> None:
    ours = scheduler(fault_domains={"strict": HomeAndBackup(("rounded",))})
    assert ours.add(request("a", "strict"), 0.0) is None
    assert not ours.has_work("rounded")
    assert started(ours.plan("exact", 0.0)) == 1


def test_memory_of_a_device_is_a_condition_beside_precision() -> None:
    large = contract("large", 60_000.0, resources=asks_for(memory_per_gpu_mb=2000.0))
    small = [kind("exact", 2.0, memory_per_device_mb=1000.0), kind("rounded", 1.0, loses_precision=True)]
    ours = unequal_scheduler([large], small, DOMAINS)
    refusal = ours.add(request("a", "large"), 0.0)
    assert refusal is not None
    assert refusal.code == "no_domain"
