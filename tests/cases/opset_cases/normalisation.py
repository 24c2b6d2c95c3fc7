"""Cases of softmax, layer normalisation, weight normalisation and batch normalisation in inference."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from tests.cases.opset_cases.drawing import F64, Builder, Draw, add_each
from tests.oracles.sbp_check import Case, make_case

CASES: dict[str, Builder] = {}
_each = partial(add_each, CASES)


def _softmax(t: str, d: Draw) -> Iterator[Case]:
    shape = (d.size(), 6, d.size())
    for dim in (-1, 1, 0):
        if "backward" in t:
            yield make_case(t, d.real(*shape), torch.softmax(d.real(*shape), dim), dim, F64)
        else:
            yield make_case(t, d.real(*shape), dim, False)


def _layer_norm(t: str, d: Draw) -> Iterator[Case]:
    a, b = 6, d.size()
    for inner in ([6], [4, 6]):
        x, w, bias = d.real(a, b, *inner), d.real(*inner), d.real(*inner)
        if "backward" not in t:
            yield make_case(t, x, inner, w, bias, 1e-5)
            yield make_case(t, x, inner, None, None, 1e-5)
            continue
        _, mean, rstd = torch.native_layer_norm(x, inner, w, bias, 1e-5)
        for mask in ([True, True, True], [True, False, False], [False, True, True]):
            yield make_case(t, d.real(*x.shape), x, inner, mean, rstd, w, bias, mask)
        yield make_case(t, d.real(*x.shape), x, inner, mean, rstd, None, None, [True, False, False])


_each("_softmax.default _log_softmax.default _softmax_backward_data.default _log_softmax_backward_data.default", _softmax)
_each("native_layer_norm.default native_layer_norm_backward.default", _layer_norm)


def _weight_norm(t: str, d: Draw) -> Iterator[Case]:
    for shape, dim in (((6, 4, 3), 0), ((4, 12), 1)):
        v = d.real(*shape)
        g = d.real(*[extent if k == dim else 1 for k, extent in enumerate(shape)])
        if "backward" not in t:
            yield make_case(t, v, g, dim)
            continue
        _, norms = torch.ops.aten._weight_norm_interface(v, g, dim)
        yield make_case(t, d.real(*shape), v, g, norms, dim)


def _batch_norm_inference(t: str, d: Draw) -> Iterator[Case]:
    for x in (d.real(6, 6, d.size(), 2), d.real(12, 6)):
        yield make_case(t, x, d.real(6), d.real(6), d.real(6), d.positive(6), 0.1, 1e-5)
        yield make_case(t, x, None, None, d.real(6), d.positive(6), 0.1, 1e-5)


_each("_weight_norm_interface.default _weight_norm_interface_backward.default", _weight_norm)
_each("_native_batch_norm_legit_no_training.default", _batch_norm_inference)
