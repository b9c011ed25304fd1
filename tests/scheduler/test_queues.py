"""Waiting queues against a plain sorted list."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from superinfer.contracts.contract import SLOContract
from superinfer.scheduler.queues import WaitingQueues
from superinfer.scheduler.request import Request, SamplingParams
from superinfer.scheduler.sequence import SequenceState

CONTRACTS = [SLOContract(service_id="a"), SLOContract(service_id="b")]
actions = st.lists(st.tuples(st.integers(0, 11), st.floats(0.0, 10.0), st.integers(1, 5)), max_size=80)


def make_sequence(number: int) -> SequenceState:
    contract = CONTRACTS[number % 2]
    request = Request(
        request_id=str(number),
        contract_id=contract.service_id,
        prompt_token_ids=[1],
        sampling=SamplingParams(),
        arrival_s=0.0,
    )
    return SequenceState(number, request, contract)


@given(actions)
@settings(max_examples=300, deadline=None)
def test_the_first_of_each_contract_are_those_of_a_sorted_list_however_requests_come_and_go(
    turns: list[tuple[int, float, int]],
) -> None:
    """Each turn a request enters with a new key, or leaves if it is in; those that left come back under other keys."""
    sequences = [make_sequence(number) for number in range(12)]
    keys: dict[int, float] = {}
    queues = WaitingQueues(lambda sequence: keys[sequence.sequence_id])
    for number, key, count in turns:
        sequence = sequences[number]
        if number in keys:
            del keys[number]
            queues.remove(sequence)
        else:
            keys[number] = key
            queues.push(sequence)
        queues.remove(make_sequence(99))
        assert queues.count == queues.blocks_wanted() == len(keys)
        for contract in CONTRACTS:
            name = contract.service_id
            expected = sorted((k, n) for n, k in keys.items() if sequences[n].request.contract_id == name)
            assert [s.sequence_id for s in queues.first(name, count)] == [n for _, n in expected[:count]]
            assert sorted(s.sequence_id for s in queues.waiting(name)) == sorted(n for _, n in expected)
            assert queues.first_rows(name, count).tolist() == [sequences[n].row for _, n in expected[:count]]
            head = queues.head(name)
            assert (head.sequence_id if head else None) == (expected[0][1] if expected else None)
            assert queues.length(name) == len(expected)


@given(actions)
@settings(max_examples=100, deadline=None)
def test_those_whose_time_is_up_lapse_for_good_and_leave_the_front_to_the_others(
    turns: list[tuple[int, float, int]],
) -> None:
    """Each turn a request enters or leaves, and the clock moves on to a time drawn before, if that is later."""
    sequences = [make_sequence(number) for number in range(12)]
    keys: dict[int, float] = {}
    lapsed: set[int] = set()
    now = 0.0
    queues = WaitingQueues(lambda sequence: keys[sequence.sequence_id])
    for number, key, count in turns:
        sequence = sequences[number]
        now = max(now, key / 2)
        if number in keys:
            del keys[number]
            lapsed.discard(number)
            queues.remove(sequence)
        else:
            keys[number] = key
            queues.push(sequence)
        queues.lapse("a", now)
        lapsed |= {n for n, k in keys.items() if n % 2 == 0 and k <= now}
        others = sorted((k, n) for n, k in keys.items() if n % 2 == 0 and n not in lapsed)
        assert [s.sequence_id for s in queues.first("a", count)] == [n for _, n in others[:count]]
        assert [s.sequence_id for s in queues.first_lapsed("a", count)] == sorted(lapsed)[:count]
        assert queues.length("a") == len(others) + len(lapsed)
        assert queues.count == len(keys)
        assert {s.sequence_id for s in queues.waiting("a")} == {n for _, n in others} | lapsed
        assert not queues.first_lapsed("b", count)
