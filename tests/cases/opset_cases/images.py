"""Cases of convolution, pooling, padding, unfolding, sampling on grids and resizing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from tests.cases.opset_cases.drawing import F64, Builder, Draw, add_each
from tests.oracles.sbp_check import Case, make_case

CASES: dict[str, Builder] = {}
_each = partial(add_each, CASES)


GEOMETRY = ([1, 1], [1, 1], [1, 1])


def _convolution(t: str, d: Draw) -> Iterator[Case]:
    n = d.size()
    x, w, transposed = d.real(6, 6, 5, 4), d.real(12, 6, 3, 3), d.real(6, 12, 3, 3)
    yield make_case(t, x, w, None, *GEOMETRY, False, [0, 0], 1)
    yield make_case(t, x, w, d.real(12), *GEOMETRY, False, [0, 0], 1)
    yield make_case(t, d.real(n, 6, 5, 5), d.real(6, 1, 3, 3), d.real(6), *GEOMETRY, False, [0, 0], 6)
    yield make_case(t, x, transposed, None, *GEOMETRY, True, [0, 0], 1)
    yield make_case(t, d.real(n, 6, 7), d.real(6, 6, 3), d.real(6), [2], [0], [1], False, [0], 1)
    yield make_case(t, x, d.real(12, 3, 3, 3), d.real(12), [2, 1], [2, 0], [2, 1], False, [0, 0], 2)
    yield make_case(t, x, d.real(12, 2, 3, 3), None, *GEOMETRY, False, [0, 0], 3)
    yield make_case(t, d.real(n, 6, 3, 2), d.real(6, 2, 3, 3), d.real(4), [2, 2], [1, 1], [1, 1], True, [1, 1], 2)


def _convolution_backward(t: str, d: Draw) -> Iterator[Case]:
    x, w = d.real(6, 6, 5, 4), d.real(12, 6, 3, 3)
    grad = d.real(6, 12, 5, 4)
    for mask in ([True, True, True], [False, True, True], [True, False, False]):
        yield make_case(t, grad, x, w, [12], *GEOMETRY, False, [0, 0], 1, mask)
    yield make_case(t, grad, x, w, None, *GEOMETRY, False, [0, 0], 1, [True, True, False])
    yield make_case(t, d.real(6, 6, 5, 4), x, d.real(6, 1, 3, 3), [6], *GEOMETRY, False, [0, 0], 6, [True, True, True])
    yield make_case(t, grad, x, d.real(6, 12, 3, 3), [12], *GEOMETRY, True, [0, 0], 1, [True, True, True])
    yield make_case(t, d.real(6, 12, 3, 2), x, d.real(12, 3, 3, 3), [12], [2, 1], [2, 0], [2, 1], False, [0, 0], 2, [True, True, True])
    yield make_case(t, grad, x, d.real(12, 2, 3, 3), None, *GEOMETRY, False, [0, 0], 3, [True, True, False])
    small = d.real(6, 6, 3, 2)
    yield make_case(t, d.real(6, 4, 6, 4), small, d.real(6, 2, 3, 3), [4], [2, 2], [1, 1], [1, 1], True, [1, 1], 2, [True, True, True])


def _pool(t: str, d: Draw) -> Iterator[Case]:
    x = d.real(6, d.size(), 6, 4)
    plane = d.real(6, 6, 4)
    match t.split(".")[1]:
        case "max_pool2d_with_indices" | "avg_pool2d":
            yield make_case(t, x, [2, 2], [2, 2])
            yield make_case(t, plane, [3, 2], [1, 2], [1, 0])
        case "_adaptive_avg_pool2d":
            yield make_case(t, x, [3, 2])
        case "_adaptive_avg_pool2d_backward":
            yield make_case(t, d.real(*x.shape[:2], 3, 2), x)
        case "avg_pool2d_backward":
            yield make_case(t, d.real(*x.shape[:2], 3, 2), x, [2, 2], [2, 2], [0, 0], False, True, None)
        case _:
            out, indices = torch.ops.aten.max_pool2d_with_indices(x, [2, 2], [2, 2])
            yield make_case(t, d.real(*out.shape), x, [2, 2], [2, 2], [0, 0], [1, 1], False, indices)


def _pool3d(t: str, d: Draw) -> Iterator[Case]:
    x, out = d.real(6, d.size(), 4, 2, 6), (2, 1, 3)
    match t.split(".")[1]:
        case "max_pool3d_with_indices" | "avg_pool3d":
            yield make_case(t, x, [2, 2, 2], [2, 2, 2])
            yield make_case(t, d.real(6, 3, 4, 6), [2, 1, 2], [2, 1, 2])
        case "_adaptive_avg_pool3d":
            yield make_case(t, x, list(out))
        case "_adaptive_avg_pool3d_backward":
            yield make_case(t, d.real(*x.shape[:2], *out), x)
        case "avg_pool3d_backward":
            yield make_case(t, d.real(*x.shape[:2], *out), x, [2, 2, 2], [2, 2, 2], [0, 0, 0], False, True, None)
        case _:
            pooled, indices = torch.ops.aten.max_pool3d_with_indices(x, [2, 2, 2], [2, 2, 2])
            yield make_case(t, d.real(*pooled.shape), x, [2, 2, 2], [2, 2, 2], [0, 0, 0], [1, 1, 1], False, indices)


def _adaptive_max_pool(t: str, d: Draw) -> Iterator[Case]:
    for x in (d.real(6, d.size(), 6, 4), d.real(6, 6, 4)):
        if "backward" not in t:
            yield make_case(t, x, [3, 2])
            continue
        pooled, indices = torch.ops.aten.adaptive_max_pool2d(x, [3, 2])
        yield make_case(t, d.real(*pooled.shape), x, indices)


def _pad_by_content(t: str, d: Draw) -> Iterator[Case]:
    spatial = int(t.split("pad")[1][0])
    plane, pad = (4, 3, 5)[:spatial], [1, 2] * spatial
    larger = [extent + 3 for extent in plane]
    for x in (d.real(6, d.size(), *plane), d.real(6, *plane)):
        if "backward" in t:
            yield make_case(t, d.real(*x.shape[: x.ndim - spatial], *larger), x, pad)
        else:
            yield make_case(t, x, pad)


def _unfold(t: str, d: Draw) -> Iterator[Case]:
    window: tuple[object, ...] = ([3, 2], [1, 1], [1, 0], [1, 2])
    n = d.size()
    if "im2col" in t:
        yield make_case(t, d.real(n, 6, 4, 5), *window)
        yield make_case(t, d.real(6, 1, 4, 5), *window)
    else:
        yield make_case(t, d.real(n, 6 * 6, 4 * 2), [4, 5], *window)
        yield make_case(t, d.real(6, 1 * 6, 4 * 2), [4, 5], *window)


_each(
    """max_pool3d_with_indices.default max_pool3d_with_indices_backward.default avg_pool3d.default avg_pool3d_backward.default
    _adaptive_avg_pool3d.default _adaptive_avg_pool3d_backward.default""",
    _pool3d,
)
_each("adaptive_max_pool2d.default adaptive_max_pool2d_backward.default", _adaptive_max_pool)
_each(
    " ".join(f"{kind}_pad{n}d{way}.default" for kind in ("reflection", "replication") for n in (1, 2, 3) for way in ("", "_backward")),
    _pad_by_content,
)
_each("im2col.default col2im.default", _unfold)


def _grid(t: str, d: Draw) -> Iterator[Case]:
    spatial = 3 if "3d" in t else 2
    for mode, padding, corners in ((0, 0, False), (1, 1, False), (0, 2, True), *(((2, 0, False),) if spatial == 2 else ())):
        n, image, places = d.size(), (4, 5, 3)[:spatial], (6, 2, 4)[:spatial]
        x, grid = d.real(n, 6, *image), d.real(n, *places, spatial) / 2
        if "backward" not in t:
            yield make_case(t, x, grid, mode, padding, corners)
            continue
        for mask in ([True, True], [False, True]):
            yield make_case(t, d.real(n, 6, *places), x, grid, mode, padding, corners, mask)


def _unpool(t: str, d: Draw) -> Iterator[Case]:
    if "2d" in t:
        pooled, places = torch.ops.aten.max_pool2d_with_indices(d.real(6, d.size(), 4, 6), [2, 2], [2, 2])
        yield make_case(t, pooled, places, [4, 6])
    else:
        pooled, places = torch.ops.aten.max_pool3d_with_indices(d.real(6, d.size(), 4, 6, 2), [2, 2, 2], [2, 2, 2])
        yield make_case(t, pooled, places, [4, 6, 2], [2, 2, 2], [0, 0, 0])


def _adaptive_max_pool3d(t: str, d: Draw) -> Iterator[Case]:
    x = d.real(6, d.size(), 4, 2, 6)
    if "backward" not in t:
        yield make_case(t, x, [2, 1, 3])
        return
    pooled, places = torch.ops.aten.adaptive_max_pool3d(x, [2, 1, 3])
    yield make_case(t, d.real(*pooled.shape), x, places)


def _drawn_pool(t: str, d: Draw) -> Iterator[Case]:
    spatial = 3 if "3d" in t else 2
    kernel, size, plane = [2] * spatial, [3, 2, 2][:spatial], (6, 4, 5)[:spatial]
    n = d.size()
    for x, draws in ((d.real(n, 6, *plane), (n, 6)), (d.real(6, *plane), (1, 6))):
        cuts = torch.rand(*draws, spatial, generator=d.generator, dtype=F64)
        if "backward" not in t:
            yield make_case(t, x, kernel, size, cuts)
            continue
        pooled, places = getattr(torch.ops.aten, f"fractional_max_pool{spatial}d")(x, kernel, size, cuts)
        yield make_case(t, d.real(*pooled.shape), x, kernel, size, places)


_each(" ".join(f"grid_sampler_{n}d{way}.default" for n in (2, 3) for way in ("", "_backward")), _grid)
_each("max_unpool2d.default max_unpool3d.default", _unpool)
_each("adaptive_max_pool3d.default adaptive_max_pool3d_backward.default", _adaptive_max_pool3d)
_each(" ".join(f"fractional_max_pool{n}d{way}.default" for n in (2, 3) for way in ("", "_backward")), _drawn_pool)


def _resize(t: str, d: Draw) -> Iterator[Case]:
    small, large = ([3], [6]) if "1d" in t else ([3, 2], [6, 5]) if "2d" in t else ([3, 2, 1], [6, 5, 2])
    extra = (False,) if "linear" in t or "cubic" in t else ()
    n = d.size()
    if "backward" in t:
        yield make_case(t, d.real(n, 6, *large), large, [n, 6, *small], *extra)
        yield make_case(t, d.real(6, n, *small), small, [6, n, *large], *extra)
    else:
        yield make_case(t, d.real(n, 6, *small), large, *extra)
        yield make_case(t, d.real(6, n, *large), small, *extra)


_each(
    " ".join(
        f"{name}{way}.default"
        for name in (
            *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d", "upsample_bilinear2d"),
            *("upsample_bicubic2d", "upsample_trilinear3d", *(f"_upsample_nearest_exact{n}d" for n in (1, 2, 3))),
            *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
        )
        for way in ("", "_backward")
    ),
    _resize,
)
_each("convolution.default", _convolution)
_each("convolution_backward.default", _convolution_backward)
_each(
    """max_pool2d_with_indices.default max_pool2d_with_indices_backward.default avg_pool2d.default avg_pool2d_backward.default
    _adaptive_avg_pool2d.default _adaptive_avg_pool2d_backward.default""",
    _pool,
)
