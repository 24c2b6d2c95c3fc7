"""Cases of attention: as many heads of keys as of queries, fewer, one; causal, and masks of every extent that broadcasts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

from torch import Tensor

from planner.frontend.attention import KERNELS
from tests.cases.opset_cases.drawing import Builder, Draw, add_each
from tests.oracles.sbp_check import Case, make_case

CASES: dict[str, Builder] = {}
_each = partial(add_each, CASES)


def _attention(t: str, d: Draw) -> Iterator[Case]:
    samples, rows, keys = d.size(), d.size(), d.size()
    for heads, groups in ((6, 6), (12, 6), (6, 1), (1, 1)):
        q, k, v = d.real(samples, heads, rows, 4), d.real(samples, groups, keys, 4), d.real(samples, groups, keys, 4)
        for mask, is_causal, scale in _masks(d, samples, heads, rows, keys):
            given, place = (q, k, v, mask, is_causal, scale), ((tuple(q.shape), ()) if is_causal else ())
            if "backward" not in t:
                yield make_case(t, *given, *place)
                continue
            out, logsumexp = KERNELS["regista.attention"](*given)  # type: ignore[misc]
            yield make_case(t, d.real(*out.shape), q, k, v, mask, out, logsumexp, is_causal, scale, *place)


def _masks(d: Draw, samples: int, heads: int, rows: int, keys: int) -> Iterator[tuple[Tensor | None, bool, float | None]]:
    yield None, False, None
    yield None, True, 0.5
    yield d.mask(1, 1, rows, keys), False, None
    yield d.mask(samples, 1, 1, keys), False, 0.5
    yield d.real(samples, heads, rows, keys), False, None


_each("regista.attention regista.attention_backward", _attention)


def _blocks(t: str, d: Draw) -> Iterator[Case]:
    """Every step of rings of as many blocks as the tests have parts; in all but the first there are steps before."""
    samples, rows = d.size(), d.size()
    for (heads, groups), parts, is_causal in product(((6, 6), (12, 6), (6, 1)), (2, 3), (False, True)):
        q, k, v = d.real(samples, heads, rows, 4), d.real(samples, groups, rows, 4), d.real(samples, groups, rows, 4)
        if t.endswith("keys"):
            yield make_case(t, k, v, d.real(*q.shape))
            continue
        seen = KERNELS["regista.attention"](q, k, v, None, is_causal, None)
        for turn in range(parts):
            place = (is_causal, None, turn, parts, rows // parts, tuple(q.shape), ())
            if t.endswith("sums"):
                yield make_case(t, k, d.real(*k.shape), v, d.real(*v.shape), turn, parts)
            elif t.endswith("backward"):
                yield make_case(t, d.real(*q.shape), q, k, v, *seen, d.real(*q.shape) if turn else None, *place)  # type: ignore[misc]
            else:
                yield make_case(t, q, k, v, *(seen if turn else (None, None)), *place)  # type: ignore[misc]


_each("regista.attention_block regista.attention_block_backward regista.attention_block_keys regista.attention_block_sums", _blocks)
