"""Cases of contractions: products of matrices and of their batches, solves, distances, cross products."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from tests.cases.opset_cases.drawing import F64, Builder, Draw, add_each
from tests.oracles.sbp_check import Case, make_case

CASES: dict[str, Builder] = {}
_each = partial(add_each, CASES)


def _matmul(t: str, d: Draw) -> Iterator[Case]:
    m, k, n, b = d.sizes(4)
    match t.split(".")[1]:
        case "mm":
            yield make_case(t, d.real(m, k), d.real(k, n))
            yield make_case(t, d.real(m, 6), d.real(6, n))
            square = d.real(6, 6)
            yield make_case(t, square, square)
        case "bmm":
            yield make_case(t, d.real(b, m, k), d.real(b, k, n))
            yield make_case(t, d.real(6, m, 6), d.real(6, 6, n))
        case "matmul":
            yield make_case(t, d.real(b, 6, m, k), d.real(b, 6, k, n))
            yield make_case(t, d.real(6, 3, m, 6), d.real(6, 3, 6, 6))
            yield make_case(t, d.real(6, m, k), d.real(6, k, n))
        case "mv":
            yield make_case(t, d.real(m, 6), d.real(6))
        case "dot":
            yield make_case(t, d.real(6), d.real(6))
        case _:
            yield make_case(t, d.real(n), d.real(m, 6), d.real(6, n))
            yield make_case(t, d.real(m, 1), d.real(m, k), d.real(k, n), beta=2, alpha=3)


_each("mm.default bmm.default matmul.default mv.default dot.default addmm.default", _matmul)


def _matrix(t: str, d: Draw) -> Iterator[Case]:
    """What is done to each matrix of a batch; signs and phases are those of the kernel, the same on every part."""
    for batch in ((), (6,), (6, d.size())):
        a = d.real(*batch, 4, 4) + 4 * torch.eye(4, dtype=F64)
        b, lower = d.real(*batch, 4, 3), a.tril()
        match t.split(".")[1]:
            case "linalg_lu_solve":
                factors, pivots, _ = torch.ops.aten.linalg_lu_factor_ex(a)
                yield make_case(t, factors, pivots, b)
            case "_linalg_solve_ex":
                yield make_case(t, a, b)
            case "linalg_solve_triangular":
                yield make_case(t, lower, b, upper=False)
            case "linalg_cholesky_ex" | "_linalg_eigh":
                yield make_case(t, a @ a.mT)
            case "cholesky_solve":
                yield make_case(t, b, lower)
            case "linalg_householder_product":
                yield make_case(t, d.real(*batch, 4, 3), d.real(*batch, 3))
            case "_linalg_svd":
                yield make_case(t, a)
                yield make_case(t, d.real(*batch, 3, 4), True)
            case _:
                yield make_case(t, a)


def _distances(t: str, d: Draw) -> Iterator[Case]:
    for batch in ((), (6,), (6, d.size())):
        for order in (2.0,) if "euclid" in t else (1.0, 2.0, 3.0, float("inf")):
            x, y = d.real(*batch, 6, 12), d.real(*batch, 12, 12)
            if "euclid" in t:
                yield make_case(t, x, y)
            elif "forward" in t:
                yield make_case(t, x, y, order, 2)
                yield make_case(t, x, d.real(12, 12), order, None)
            else:
                far = torch.ops.aten._cdist_forward(x, y, order, 2)
                yield make_case(t, d.real(*far.shape), x, y, order, far)


def _grouped_mm(t: str, d: Draw) -> Iterator[Case]:
    """Groups of 3, 0 and 5 rows."""

    def narrow(*shape: int) -> Tensor:
        return d.real(*shape).float()

    ends = torch.tensor([3, 3, 8], dtype=torch.int32)
    yield make_case(t, narrow(8, 16), narrow(3, 16, 48), ends)
    yield make_case(t, narrow(3, 48, 16), narrow(16, 8), ends)
    yield make_case(t, narrow(48, 8), narrow(8, 16), ends)
    yield make_case(t, narrow(6, 8, 16), narrow(6, 16, 24))


def _cross(t: str, d: Draw) -> Iterator[Case]:
    yield make_case(t, d.real(6, 3, 4), d.real(6, 3, 4), dim=1)
    yield make_case(t, d.real(6, 4, 3), d.real(6, 1, 3))


def _trilinear(t: str, d: Draw) -> Iterator[Case]:
    """As a bilinear layer calls it: x [n, i], weight [o, i, j], y [n, j]."""
    n = d.size()
    yield make_case(t, d.real(n, 6), d.real(12, 6, 4), d.real(n, 4), [1, 3], [0], [1, 2], [2, 3])


_each(
    """linalg_inv_ex.default _linalg_det.default _linalg_slogdet.default linalg_lu_factor_ex.default linalg_lu_solve.default
    _linalg_solve_ex.default linalg_solve_triangular.default linalg_cholesky_ex.default cholesky_solve.default linalg_qr.default
    linalg_householder_product.default _linalg_svd.default _linalg_eigh.default""",
    _matrix,
)
_each("_cdist_forward.default _cdist_backward.default _euclidean_dist.default", _distances)
_each("linalg_cross.default", _cross)
_each("_grouped_mm.default", _grouped_mm)
_each("_trilinear.default", _trilinear)
