"""The compiled search for the largest chunk finds what trying every chunk finds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from test_histories import make_model

from superinfer.profiler.latency_model import StepShape
from superinfer.scheduler.kernels import largest_chunk, model_columns


@given(
    start=st.integers(0, 200),
    left=st.integers(0, 80),
    tokens_left=st.integers(0, 80),
    decodes=st.integers(0, 40),
    limit_s=st.floats(0.0, 0.4),
    correction=st.floats(0.5, 2.0),
)
@settings(deadline=None, max_examples=200)
def test_the_largest_chunk_is_the_last_that_keeps_the_step_within_the_limit(
    start: int, left: int, tokens_left: int, decodes: int, limit_s: float, correction: float
) -> None:
    model = make_model()
    model.correction = correction
    shape = StepShape()
    for context in range(decodes):
        shape.add_decode(context)

    def step_s(count: int) -> float:
        longer = shape.copy()
        longer.add_prefill(start, count, samples=count >= left)
        return model.step_s(longer)

    most = min(left, tokens_left)
    expected = max((count for count in range(1, most + 1) if step_s(count) <= limit_s), default=0)
    found = largest_chunk(
        *model_columns(model),
        model.correction,
        shape.tokens,
        shape.decodes,
        shape.decode_context,
        shape.prefill_pairs,
        shape.rows,
        shape.chunks,
        start,
        left,
        most,
        limit_s,
    )
    assert found == expected
