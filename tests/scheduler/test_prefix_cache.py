"""Prompts that begin alike share blocks: what is found, what is computed, what is told, what is given up."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from test_failover import SIZE, crash, free_blocks, make_scheduler, step

from superinfer.scheduler.outputs import FinishOutput
from superinfer.scheduler.prefix_cache import extend_names
from superinfer.scheduler.request import Request, SamplingParams
from superinfer.scheduler.scheduler import Scheduler
from superinfer.scheduler.steps import NewSequence, StepPlan


def add(scheduler: Scheduler, number: int, prompt: list[int], *, max_tokens: int = 4) -> None:
    request = Request(
        request_id=f"r{number}",
        contract_id="",
        prompt_token_ids=prompt,
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0),
        arrival_s=0.0,
    )
    assert scheduler.add(request, 0.0) is None


def end(scheduler: Scheduler, number: int) -> FinishOutput:
    finish = scheduler.abort(f"r{number}", 0.0, "stop")
    assert finish is not None
    return finish


def new_sequence(plan: StepPlan) -> NewSequence:
    (new,) = plan.new_sequences
    return new


@given(st.lists(st.integers(0, 3), max_size=20), st.lists(st.integers(0, 3), max_size=20))
def test_names_are_equal_exactly_where_prefixes_are(one: list[int], other: list[int]) -> None:
    names: list[list[bytes]] = [[], []]
    for found, tokens in zip(names, (one, other), strict=True):
        extend_names(found, tokens[:7], SIZE)
        extend_names(found, tokens, SIZE)
        assert len(found) == len(tokens) // SIZE
    for block, (a, b) in enumerate(zip(*names, strict=False)):
        assert (a == b) == (one[: (block + 1) * SIZE] == other[: (block + 1) * SIZE])


def test_a_later_prompt_computes_what_it_does_not_share_alone_and_reports_the_rest_as_cached() -> None:
    scheduler = make_scheduler(prefix_cache=True, domains=1)
    add(scheduler, 0, list(range(10)))
    first = new_sequence(step(scheduler, "0"))
    add(scheduler, 1, [*range(9), 500, 501, 502])
    plan = step(scheduler, "0")
    (chunk,) = plan.sequences
    assert (new_sequence(plan).computed, chunk.start, chunk.count) == (8, 8, 4)
    (holder, sharer) = scheduler._by_sequence.values()
    assert sharer.blocks[:2] == holder.blocks[:2] == new_sequence(plan).blocks
    assert first.computed == 0
    assert (end(scheduler, 0).cached_tokens, end(scheduler, 1).cached_tokens) == (0, 8)
    assert free_blocks(scheduler) == scheduler.domains["0"].device_blocks.total


def test_the_last_token_of_a_prompt_that_is_there_in_whole_is_computed_for_its_successor() -> None:
    scheduler = make_scheduler(prefix_cache=True, domains=1)
    add(scheduler, 0, list(range(8)))
    step(scheduler, "0")
    end(scheduler, 0)
    add(scheduler, 1, list(range(8)))
    plan = step(scheduler, "0")
    assert (new_sequence(plan).computed, plan.sequences[0].count) == (4, 4)


def test_an_answer_is_found_by_the_prompt_that_contains_it() -> None:
    scheduler = make_scheduler(prefix_cache=True, domains=1)
    add(scheduler, 0, list(range(6)), max_tokens=20)
    for _ in range(7):
        step(scheduler, "0")
    end(scheduler, 0)
    add(scheduler, 1, [*range(6), *[7] * 7, 1, 2])
    assert new_sequence(step(scheduler, "0")).computed == 12


def test_the_scheduler_expects_no_more_of_a_prefill_than_what_is_not_cached() -> None:
    scheduler = make_scheduler(prefix_cache=True, domains=1)
    add(scheduler, 0, list(range(40)))
    step(scheduler, "0")
    add(scheduler, 1, list(range(41)))
    (_, sequence) = scheduler._by_sequence.values()
    assert sequence.prefill_left == 1
    assert scheduler.admission.estimate(sequence, 0.0).first_token_s < scheduler.model.prefill_s(0, 41) + 0.01


def test_another_domain_reads_a_prefix_in_memory_that_they_share_and_holds_it_against_its_owner() -> None:
    scheduler = make_scheduler(prefix_cache=True)
    add(scheduler, 0, list(range(10)))
    step(scheduler, "0")
    end(scheduler, 0)
    add(scheduler, 1, list(range(10)))
    plan = step(scheduler, "1")
    assert new_sequence(plan).computed == 8
    owner = scheduler.domains["0"].device_blocks
    taken = owner.take(owner.free)
    assert taken is not None
    assert not set(new_sequence(plan).blocks[:2]) & set(taken)
    assert len(taken) == owner.total - 2


def test_a_prefix_outlives_its_worker_and_is_given_up_when_memory_is_short() -> None:
    scheduler = make_scheduler(prefix_cache=True, domains=1)
    add(scheduler, 0, list(range(10)))
    step(scheduler, "0")
    end(scheduler, 0)
    crash(scheduler, 0)
    add(scheduler, 1, list(range(10)))
    assert new_sequence(step(scheduler, "0")).computed == 8
    end(scheduler, 1)
    pool = scheduler.domains["0"].device_blocks
    taken = pool.take(pool.free)
    assert taken is not None
    pool.give_back(taken)
    add(scheduler, 2, list(range(10)))
    assert new_sequence(step(scheduler, "0")).computed == 0


def test_without_the_setting_nothing_is_shared() -> None:
    scheduler = make_scheduler(domains=1)
    for number in range(2):
        add(scheduler, number, random.Random(0).choices(range(9), k=12))
        assert new_sequence(step(scheduler, "0")).computed == 0
