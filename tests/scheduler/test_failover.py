"""What becomes of a dead domain's requests where the memory with their KV outlives it; who is held to kill workers."""

from __future__ import annotations

from typing import Any

import pytest
from test_histories import make_model

from superinfer.scheduler.blocks import SEGMENT_BITS, device_pool, host_pool
from superinfer.scheduler.config import DomainSpec, SchedulerConfig
from superinfer.scheduler.outputs import FinishOutput
from superinfer.scheduler.request import Request, SamplingParams
from superinfer.scheduler.scheduler import Scheduler
from superinfer.scheduler.steps import StepPlan, StepResult

SIZE = 4
KV_BLOCKS = 20


def make_scheduler(*, domains: int = 2, shared: bool = True, **options: Any) -> Scheduler:
    config = SchedulerConfig(policy="fcfs", max_model_len=64, block_size=SIZE, **options)
    specs = [spec(number, shared=shared) for number in range(domains)]
    return Scheduler(domains=specs, contracts=[], latency_model=make_model(), config=config)


def spec(number: int, *, shared: bool = True) -> DomainSpec:
    return DomainSpec(str(number), KV_BLOCKS, segment=number if shared else None)


def add(scheduler: Scheduler, number: int, *, prompt: int = 10, max_tokens: int = 20) -> None:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    request = Request(
        request_id=f"r{number}", contract_id="", prompt_token_ids=list(range(prompt)), sampling=sampling, arrival_s=0.0
    )
    assert scheduler.add(request, 0.0) is None


def result_of(plan: StepPlan, scheduler: Scheduler) -> StepResult:
    """A token for everybody who is due one."""
    result = StepResult(domain_id=plan.domain_id, step_id=plan.step_id, started_s=0.0, finished_s=0.01)
    for sequence in scheduler._by_sequence.values():
        ends = [step.start + step.count for step in plan.sequences if step.sequence_id == sequence.sequence_id]
        known = sequence.prompt_length + len(sequence.outputs)
        if sequence.sequence_id in plan.decodes or known in ends:
            result.sequence_ids.append(sequence.sequence_id)
            result.output_indices.append(len(sequence.outputs))
            result.token_ids.append(7)
    return result


def step(scheduler: Scheduler, domain: str) -> StepPlan:
    plan = scheduler.plan(domain, 0.0)
    assert plan is not None
    scheduler.observe(result_of(plan, scheduler), 0.0)
    return plan


def free_blocks(scheduler: Scheduler) -> int:
    return sum(domain.device_blocks.free for domain in scheduler.domains.values())


def test_a_survivor_goes_on_with_the_blocks_where_they_lie_and_computes_the_last_token_alone() -> None:
    scheduler = make_scheduler()
    add(scheduler, 0, prompt=10)
    for _ in range(4):
        step(scheduler, "0")
    in_flight = scheduler.plan("0", 0.0)
    assert in_flight is not None
    assert in_flight.decodes == [0]
    (sequence,) = scheduler._by_sequence.values()
    blocks = list(sequence.blocks)
    assert scheduler.domain_failed("0", 0.0) == (1, [])
    plan = scheduler.plan("1", 0.0)
    assert plan is not None
    (new,) = plan.new_sequences
    (chunk,) = plan.sequences
    # Prompt and four tokens are known, the KV of the last one was still to be computed.
    assert (new.computed, len(new.token_ids), chunk.start, chunk.count) == (13, 14, 13, 1)
    own = device_pool(1) << SEGMENT_BITS
    assert plan.copies == [(blocks[3], own)]
    assert new.blocks == [*blocks[:3], own]
    scheduler.observe(result_of(plan, scheduler), 0.0)
    while scheduler.has_work("1") and scheduler._by_sequence:
        step(scheduler, "1")
        if len(sequence.outputs) == 20:
            scheduler.abort("r0", 0.0)
    scheduler.domain_ready(spec(0), 0.0)
    assert free_blocks(scheduler) == 2 * KV_BLOCKS


def test_the_restarted_worker_of_a_single_domain_goes_on_in_its_own_blocks_without_a_copy() -> None:
    scheduler = make_scheduler(domains=1)
    add(scheduler, 0)
    for _ in range(3):
        step(scheduler, "0")
    (sequence,) = scheduler._by_sequence.values()
    blocks = list(sequence.blocks)
    scheduler.domain_failed("0", 0.0)
    scheduler.domain_ready(spec(0), 0.0)
    plan = scheduler.plan("0", 0.0)
    assert plan is not None
    assert plan.copies == []
    assert plan.new_sequences[0].computed == 12
    assert plan.new_sequences[0].blocks == blocks[:3]


def test_a_prefill_goes_on_behind_the_last_chunk_that_was_observed() -> None:
    scheduler = make_scheduler(max_step_tokens=6)
    add(scheduler, 0, prompt=20)
    step(scheduler, "0")
    assert scheduler.plan("0", 0.0) is not None
    scheduler.domain_failed("0", 0.0)
    plan = scheduler.plan("1", 0.0)
    assert plan is not None
    assert (plan.new_sequences[0].computed, plan.sequences[0].start, plan.sequences[0].count) == (6, 6, 6)


def test_a_rotated_sequence_goes_on_from_the_dead_domains_host_pool() -> None:
    scheduler = make_scheduler(host_blocks=10)
    for number in range(5):
        add(scheduler, number, prompt=14)
    for _ in range(6):
        step(scheduler, "0")
    rotated = list(scheduler.domains["0"].rotated.values())
    assert rotated
    scheduler.domain_failed("0", 0.0)
    plan = scheduler.plan("1", 0.0)
    assert plan is not None
    computed = {new.sequence_id: new.computed for new in plan.new_sequences}
    for sequence in rotated:
        if sequence.sequence_id in computed:
            assert computed[sequence.sequence_id] == 13 + len(sequence.outputs)
            assert sequence.blocks[0] >> SEGMENT_BITS == host_pool(0)
    assert any(sequence.sequence_id in computed for sequence in rotated)


def test_what_a_restarted_domain_gave_up_for_others_is_computed_again() -> None:
    scheduler = make_scheduler(domains=1)
    add(scheduler, 0, prompt=40)
    step(scheduler, "0")
    scheduler.domain_failed("0", 0.0)
    scheduler.domain_ready(spec(0), 0.0)
    (sequence,) = scheduler._by_sequence.values()
    assert sequence.prefill_left == 1
    pool = scheduler.domains["0"].device_blocks
    taken = pool.take(KV_BLOCKS - 4)
    assert taken is not None
    assert scheduler.plan("0", 0.0) is None
    pool.give_back(taken)
    plan = scheduler.plan("0", 0.0)
    assert plan is not None
    assert 0 < plan.new_sequences[0].computed < 40
    assert plan.sequences[0].start == plan.new_sequences[0].computed


def test_without_memory_that_outlives_a_domain_everything_is_computed_again() -> None:
    scheduler = make_scheduler(shared=False)
    add(scheduler, 0)
    step(scheduler, "0")
    scheduler.domain_failed("0", 0.0)
    plan = scheduler.plan("1", 0.0)
    assert plan is not None
    assert (plan.new_sequences[0].computed, plan.sequences[0].count) == (0, 11)


def crash(scheduler: Scheduler, domain: int, *, isolates: bool = True) -> list[FinishOutput]:
    _, ended = scheduler.domain_failed(str(domain), 0.0, isolates=isolates)
    scheduler.domain_ready(spec(domain), 0.0)
    return [output for output in ended if isinstance(output, FinishOutput)]


def test_after_a_crash_the_suspects_run_one_at_a_time_and_the_second_death_tells_which_it_was() -> None:
    scheduler = make_scheduler(domains=1)
    for number in range(3):
        add(scheduler, number)
    step(scheduler, "0")
    assert scheduler.plan("0", 0.0) is not None
    assert crash(scheduler, 0) == []
    plan = scheduler.plan("0", 0.0)
    assert plan is not None
    assert [new.sequence_id for new in plan.new_sequences] == [0]
    (ended,) = crash(scheduler, 0)
    assert (ended.request_id, ended.reason) == ("r0", "error")
    assert ended.error == "the worker died 2 times while it ran this request"
    for _ in range(6):
        step(scheduler, "0")
    assert {sequence.domain_deaths for sequence in scheduler._by_sequence.values()} == {0}
    assert len(scheduler.domains["0"].running) == 2


def test_requests_that_go_on_between_deaths_are_not_held_to_cause_them() -> None:
    scheduler = make_scheduler()
    add(scheduler, 0, max_tokens=40)
    for kill in range(10):
        domain = kill % 2
        step(scheduler, str(domain))
        assert scheduler.plan(str(domain), 0.0) is not None
        assert crash(scheduler, domain, isolates=False) == []


def test_a_long_prompt_survives_kills_between_its_chunks() -> None:
    scheduler = make_scheduler(max_step_tokens=8)
    add(scheduler, 0, prompt=40)
    for kill in range(4):
        step(scheduler, str(kill % 2))
        assert scheduler.plan(str(kill % 2), 0.0) is not None
        assert crash(scheduler, kill % 2, isolates=False) == []


@pytest.mark.parametrize("isolates", [True, False])
def test_a_request_alone_in_two_deaths_without_a_token_between_them_is_ended(isolates: bool) -> None:
    scheduler = make_scheduler()
    add(scheduler, 0)
    assert scheduler.plan("0", 0.0) is not None
    assert crash(scheduler, 0, isolates=isolates) == []
    assert scheduler.plan("1", 0.0) is not None
    assert [ended.reason for ended in crash(scheduler, 1, isolates=isolates)] == ["error"]


def saving_scheduler(strategy: str = "incremental", *, host_blocks: int = 20) -> Scheduler:
    scheduler = make_scheduler(
        shared=False, host_blocks=host_blocks, save_interval_s=0.05, save_strategy=strategy, max_step_tokens=64
    )
    for number in range(2):
        scheduler.domain_ready(DomainSpec(str(number), KV_BLOCKS, segment=number, device_outlives=False), 0.0)
    return scheduler


def test_only_what_changed_since_is_saved_and_not_before_the_interval_is_over() -> None:
    scheduler = saving_scheduler()
    add(scheduler, 0, prompt=10)
    assert step(scheduler, "0").saves == []
    scheduler.domains["0"].saved_s = -1.0
    plan = step(scheduler, "0")
    (sequence,) = scheduler._by_sequence.values()
    pairs = list(zip(sequence.blocks[:3], sequence.host_blocks, strict=True))
    assert plan.saves == pairs[:2]
    assert plan.partial_saves == [(*pairs[2], 0, 2)]
    plan = step(scheduler, "0")
    assert plan.saves == plan.partial_saves == []
    scheduler.domains["0"].saved_s = -1.0
    plan = step(scheduler, "0")
    assert plan.saves == []
    assert plan.partial_saves == [(*pairs[2], 2, 4)]


def test_the_full_strategy_saves_every_block_each_time() -> None:
    scheduler = saving_scheduler("full")
    add(scheduler, 0, prompt=10)
    step(scheduler, "0")
    for _ in range(2):
        scheduler.domains["0"].saved_s = -1.0
        plan = step(scheduler, "0")
        assert len(plan.saves) + len(plan.partial_saves) == 3


def test_a_survivor_copies_what_was_saved_to_its_own_memory_and_computes_the_rest() -> None:
    scheduler = saving_scheduler()
    add(scheduler, 0, prompt=10)
    step(scheduler, "0")
    scheduler.domains["0"].saved_s = -1.0
    step(scheduler, "0")
    for _ in range(3):
        step(scheduler, "0")
    (sequence,) = scheduler._by_sequence.values()
    saved = list(sequence.host_blocks)
    scheduler.domain_failed("0", 0.0)
    plan = scheduler.plan("1", 0.0)
    assert plan is not None
    assert sorted(source for source, _ in plan.copies) == saved
    assert all(to >> SEGMENT_BITS == device_pool(1) for _, to in plan.copies)
    (chunk,) = plan.sequences
    assert (plan.new_sequences[0].computed, chunk.start, chunk.count) == (10, 10, 5)


def test_rotating_out_moves_the_blocks_that_are_not_saved_alone() -> None:
    scheduler = saving_scheduler()
    for number in range(5):
        add(scheduler, number, prompt=14)
    while not (plan := step(scheduler, "0")).rotate_out:
        scheduler.domains["0"].saved_s = -1.0
    assert max(len(rotation.pairs) for rotation in plan.rotate_out) <= 2


def test_saved_copies_give_way_to_who_is_rotated_out() -> None:
    scheduler = saving_scheduler(host_blocks=6)
    for number in range(5):
        add(scheduler, number, prompt=14, max_tokens=12)
    rotated = False
    for _ in range(200):
        scheduler.domains["0"].saved_s = -1.0
        plan = scheduler.plan("0", 0.0)
        if plan is None:
            break
        rotated = rotated or bool(plan.rotate_out)
        result = result_of(plan, scheduler)
        for sequence_id, index in zip(result.sequence_ids, result.output_indices, strict=True):
            if index == 11:
                result.ends.append((sequence_id, "length"))
        scheduler.observe(result, 0.0)
    assert rotated
    assert not scheduler._by_sequence
    assert scheduler.domains["0"].host_blocks.free == 6
