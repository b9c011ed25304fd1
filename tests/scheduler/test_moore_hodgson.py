"""Moore–Hodgson against every subset."""

from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from superinfer.scheduler.moore_hodgson import split_feasible

jobs = st.lists(st.tuples(st.integers(-5, 40), st.integers(1, 15)), max_size=8)


def feasible(chosen: list[tuple[int, int]]) -> bool:
    total = 0
    for deadline, work in sorted(chosen):
        total += work
        if total > deadline:
            return False
    return True


@settings(deadline=None)  # the first call compiles
@given(jobs)
def test_keeps_as_many_jobs_as_any_choice_could(jobs: list[tuple[int, int]]) -> None:
    columns = np.array(jobs, np.float64).reshape(-1, 2)
    order, number = split_feasible(columns[:, 0].copy(), columns[:, 1].copy(), np.arange(len(jobs)))
    kept, dropped = order[:number].tolist(), order[number:].tolist()
    assert sorted(kept + dropped) == list(range(len(jobs)))
    assert feasible([jobs[i] for i in kept])
    best = max(n for n in range(len(jobs) + 1) if any(feasible(list(subset)) for subset in combinations(jobs, n)))
    assert len(kept) == best
