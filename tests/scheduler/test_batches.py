"""A batch serves all steps in which the same sequences decode, and no other."""

from __future__ import annotations

import numpy as np
import pytest

from superinfer.contracts.contract import best_effort_contract
from superinfer.scheduler.columns import SequenceTable
from superinfer.scheduler.domain import Batch, Members
from superinfer.scheduler.request import Request, SamplingParams
from superinfer.scheduler.sequence import SequenceState


@pytest.fixture
def table():
    return SequenceTable(4)


def add(table, number):
    request = Request(
        request_id=f"r{number}",
        contract_id="best-effort",
        prompt_token_ids=[1, 2],
        sampling=SamplingParams(max_tokens=4),
        arrival_s=0.0,
    )
    return SequenceState(number, request, best_effort_contract(), table)


def rows_of(sequences):
    return np.array([sequence.row for sequence in sequences], np.int64)


def test_it_serves_the_same_sequences_in_any_order(table):
    sequences = [add(table, number) for number in range(6)]
    batch = Batch.of(table, np.sort(rows_of(sequences)))
    assert batch.after(table, rows_of(sequences)) is batch
    chosen = rows_of(sequences[::-1])
    assert batch.after(table, chosen) is batch
    chosen[:] = -1  # the room in which they were chosen is used again
    assert batch.after(table, rows_of(sequences[::-1])) is batch
    assert sorted(batch.request_ids) == [f"r{number}" for number in range(6)]


def test_it_serves_neither_fewer_nor_others(table):
    sequences = [add(table, number) for number in range(6)]
    batch = Batch.of(table, np.sort(rows_of(sequences[:4])))
    fewer, others = batch.after(table, rows_of(sequences[:3])), batch.after(table, rows_of(sequences[2:]))
    assert sorted(fewer.sequence_ids) == [0, 1, 2]
    assert sorted(others.sequence_ids) == [2, 3, 4, 5]
    assert {id(each) for each in others.outputs} == {id(each.outputs) for each in sequences[2:]}
    assert batch.sequence_ids == table.counts[batch.rows, 0].tolist()


def test_a_row_that_another_sequence_has_taken_makes_another_batch(table):
    sequences = [add(table, number) for number in range(3)]
    rows = rows_of(sequences)
    batch = Batch.of(table, np.sort(rows)).after(table, rows)
    sequences[1].leave_table()
    successor = add(table, 9)
    assert successor.row == rows[1]
    after = batch.after(table, rows)
    assert after is not batch
    assert sorted(after.request_ids) == ["r0", "r2", "r9"]
    assert any(each is successor.outputs for each in after.outputs)


def test_blocks_stay_with_a_sequence_that_leaves_the_table(table):
    one = add(table, 0)
    one.add_blocks([7, 8])
    one.leave_table()
    successor = add(table, 1)
    assert (one.blocks, successor.blocks) == ([7, 8], [])


def test_the_rows_of_members_follow_who_comes_and_goes(table):
    members, sequences = Members(), [add(table, number) for number in range(5)]
    for each in sequences:
        members[each.sequence_id] = each
    assert members.rows.tolist() == rows_of(sequences).tolist()
    del members[1]
    assert members.pop(3) is sequences[3]
    assert members.pop(3, None) is None
    members[1] = sequences[1]
    assert members.rows.tolist() == rows_of([sequences[n] for n in (0, 2, 4, 1)]).tolist()
    members.clear()
    assert members.rows.tolist() == []
