from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superinfer.cli.bench.bounds import build_contracts
from superinfer.cli.bench.capacity import UnequalDomains, capacity_rps
from superinfer.cli.bench.scenario import Arrival, load_scenario, override
from superinfer.cli.bench.workload import (
    build_warmup,
    build_workload,
    class_order,
    encode_by_hash,
    prompt_of_length,
    sample_class,
    unit_gaps,
)
from superinfer.executor.simulation.loop import simulate
from superinfer.scheduler.config import DomainSpec, SchedulerConfig
from superinfer.scheduler.domain_kind import DomainKind
from superinfer.scheduler.request import Request

ENCODE = encode_by_hash(30_000)


def several_per_word(text):
    """An encoder whose words are one to three tokens long, with a start token."""
    ids = [0]
    for word in text.split():
        ids.extend([len(word)] * (1 + len(word) % 3))
    return ids


def test_the_same_seed_gives_the_same_requests_and_another_seed_others(scenario):
    first = build_workload(scenario, seed=3, rate_rps=10, encode=ENCODE)
    assert first == build_workload(scenario, seed=3, rate_rps=10, encode=ENCODE)
    other = build_workload(scenario, seed=4, rate_rps=10, encode=ENCODE)
    assert [p.prompt_token_ids for p in first] != [p.prompt_token_ids for p in other]
    assert [p.offset_s for p in first] != [p.offset_s for p in other]


def test_another_rate_stretches_the_arrivals_and_changes_nothing_else(scenario):
    slow = build_workload(scenario, seed=0, rate_rps=5, encode=ENCODE)
    fast = build_workload(scenario, seed=0, rate_rps=10, encode=ENCODE)
    for a, b in zip(slow, fast, strict=True):
        assert a.offset_s == pytest.approx(2 * b.offset_s)
        assert (a.request_id, a.service_id, a.prompt_token_ids) == (b.request_id, b.service_id, b.prompt_token_ids)


def test_lengths_stay_within_the_scenario_and_outputs_are_fixed(scenario):
    for planned in build_workload(scenario, seed=1, rate_rps=10, encode=several_per_word):
        prompt = len(planned.prompt_token_ids)
        if planned.service_id == "triage":
            assert 5 <= prompt <= 20
            assert planned.output_tokens == 6
        else:
            assert 30 <= prompt <= 120
            assert 10 <= planned.output_tokens <= 20
        assert planned.sampling.is_greedy
        assert planned.sampling.ignore_eos


def test_request_ids_are_unique_and_offsets_ascend_from_zero(scenario):
    workload = build_workload(scenario, seed=1, rate_rps=10, encode=ENCODE)
    assert len({p.request_id for p in workload}) == scenario.requests
    offsets = [p.offset_s for p in workload]
    assert offsets[0] == 0.0
    assert offsets == sorted(offsets)


@given(st.integers(1, 300), st.integers(0, 2**31))
def test_prompts_have_exactly_the_asked_number_of_tokens(tokens, seed):
    random = np.random.default_rng(seed)
    assert len(prompt_of_length(tokens, several_per_word, random)) == tokens


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=6), st.integers(1, 200))
def test_class_counts_are_the_shares_to_within_one_request(shares, count):
    order = class_order(shares, count, np.random.default_rng(0))
    counts = Counter(order)
    assert len(order) == count
    for number, share in enumerate(shares):
        assert abs(counts[number] - share / sum(shares) * count) < 1 + 1e-9


@pytest.mark.parametrize(
    ("arrival", "cv"),
    [
        (Arrival(process="poisson"), 1.0),
        (Arrival(process="gamma", cv=2.0), 2.0),
        (Arrival(process="gamma", cv=0.3), 0.3),
        (Arrival(process="constant"), 0.0),
    ],
)
def test_gaps_have_mean_one_and_the_variation_of_their_process(arrival, cv):
    gaps = unit_gaps(arrival, 40_000, np.random.default_rng(0))
    assert gaps.mean() == pytest.approx(1.0, rel=0.05)
    assert gaps.std() == pytest.approx(cv, rel=0.05, abs=1e-12)


def test_warmup_is_best_effort_and_takes_every_class_in_turn(scenario):
    warmup = build_warmup(scenario, seed=0, encode=ENCODE)
    assert {p.service_id for p in warmup} == {"best-effort"}
    assert len(warmup[0].prompt_token_ids) <= 20 < 30 <= len(warmup[1].prompt_token_ids)


def test_scaled_bounds_are_whole_multiples_of_the_mean_unloaded_time(scenario, model):
    contracts = build_contracts(scenario, model)
    shapes = sample_class(scenario.classes[0], 512)
    unloaded = np.mean([model.unloaded_s(s.prompt_tokens, s.output_tokens) for s in shapes])
    assert contracts["triage"].deadline_ms == round(3 * unloaded * 1e3)
    assert contracts["report"].deadline_ms == 5000
    assert contracts["report"].ttft_deadline_ms > 4 * model.prefill_s(0, 30) * 1e3


def test_slo_scale_multiplies_scaled_and_absolute_bounds(scenario, model):
    single, double = build_contracts(scenario, model), build_contracts(scenario, model, slo_scale=2)
    assert double["report"].deadline_ms == 10_000
    assert double["triage"].deadline_ms == pytest.approx(2 * single["triage"].deadline_ms, abs=1)


class Profile:
    def __init__(self, model):
        self.latency_model = model


def test_capacity_separates_rates_whose_backlog_grows_from_rates_whose_does_not(model):
    scenario = override(load_scenario("mixed"), {"requests": 400})
    capacity = capacity_rps(Profile(model), scenario, 1)

    def drain_s(share):
        workload = build_workload(scenario, seed=0, rate_rps=capacity * share, encode=ENCODE)
        requests = [
            Request(
                request_id=p.request_id,
                contract_id="best-effort",
                prompt_token_ids=p.prompt_token_ids,
                sampling=p.sampling,
                arrival_s=p.offset_s,
            )
            for p in workload
        ]
        run = simulate(requests, contracts=[], model=model, config=SchedulerConfig(policy="fcfs"), kv_blocks=4096)
        return run.duration_s - workload[-1].offset_s

    assert drain_s(1.6) > 3 * drain_s(0.7)


def test_two_domains_have_twice_the_capacity_of_one(model):
    scenario = load_scenario("mixed")
    one, two = (capacity_rps(Profile(model), scenario, domains) for domains in (1, 2))
    assert two == pytest.approx(2 * one, rel=0.1)


def test_capacity_counts_a_domain_of_less_precision_only_for_classes_that_permit_it(model):
    scenario = load_scenario("mixed")
    permitting = [each.model_copy(update={"precision_loss_allowed": True}) for each in scenario.classes]
    kinds = (DomainKind("exact", model), DomainKind("rounded", model, loses_precision=True))
    unequal = UnequalDomains([DomainSpec("0", 1 << 17, kind="exact"), DomainSpec("1", 1 << 17, kind="rounded")], kinds)
    strict = capacity_rps(Profile(model), scenario, 2, unequal=unequal)
    tolerant = capacity_rps(Profile(model), scenario.model_copy(update={"classes": permitting}), 2, unequal=unequal)
    assert tolerant == pytest.approx(2 * strict, rel=0.1)
    assert strict == pytest.approx(capacity_rps(Profile(model), scenario, 1), rel=0.1)
