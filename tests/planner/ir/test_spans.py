"""Unions of intervals."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from planner.ir.traces.spans import disjoint

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda pair: (float(pair[0]), float(sum(pair)))), max_size=8)


@given(SPANS)
def test_the_union_covers_what_the_spans_cover_and_its_parts_lie_apart(spans):
    merged = disjoint(spans)
    for at in (n + 0.5 for n in range(40)):
        assert any(a < at < b for a, b in merged) == any(a < at < b for a, b in spans)
    assert all(end < begin for (_, end), (begin, _) in zip(merged, merged[1:], strict=False))
