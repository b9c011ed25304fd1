from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from superinfer.scheduler.sorting import sort_entries

KEYS = st.sampled_from([-np.inf, -1.5, 0.0, 0.25, 3.0, np.inf])


@given(st.lists(st.tuples(KEYS, KEYS), max_size=150), st.randoms(use_true_random=False))
@example([(float(i % 7), float(-i)) for i in range(100)], None)
def test_entries_are_sorted_by_both_keys_and_then_by_id_whatever_their_order_was(keys, random):
    length = len(keys)
    first, second = (np.array([key[i] for key in keys], np.float64) for i in (0, 1))
    ids, entries = np.arange(length, dtype=np.int64), np.arange(length, dtype=np.int64)
    if random is not None:
        ids = np.array(random.sample(range(2 * length), length), np.int64)
        entries = np.array(random.sample(range(length), length), np.int64)
    expected = sorted(entries.tolist(), key=lambda i: (first[i], second[i], ids[i]))
    sort_entries(first, second, ids, entries, np.empty(length, np.int64))
    assert entries.tolist() == expected


def test_only_the_entries_that_are_given_are_sorted():
    first = np.array([5.0, 4.0, 3.0, 2.0, 1.0])
    entries = np.array([4, 0, 2], np.int64)
    sort_entries(first, first, np.arange(5), entries, np.empty(3, np.int64))
    assert entries.tolist() == [4, 2, 0]
