"""Cases of ops that make tensors from nothing, of draws, of the optimizers' updates and of gradient norms."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from tests.cases.opset_cases.drawing import F64, Builder, Draw, add_each
from tests.oracles.sbp_check import Case, make_case

CASES: dict[str, Builder] = {}
_each = partial(add_each, CASES)


def _make(t: str, d: Draw) -> Iterator[Case]:
    defined = "empty" not in t
    a = d.size()
    name = t.split(".")[1]
    like = d.real(6, a)
    if name.startswith("new_"):
        for v in ((2.0,), (0,)) if name == "new_full" else ((),):
            yield make_case(t, like, [a, 12], *v, compare=defined)
    elif name.endswith("_like"):
        for v in ((2.0,), (0,)) if name == "full_like" else ((),):
            yield make_case(t, like, *v, compare=defined)
            yield make_case(t, d.real(), *v, compare=defined)
    elif name == "full":
        yield make_case(t, [6, a], 1.5, dtype=F64)
        yield make_case(t, [], 0, dtype=F64)
    else:
        yield make_case(t, [6, a], dtype=F64, compare=defined)


_each(
    """full.default zeros.default ones.default empty.memory_format new_zeros.default new_ones.default new_full.default
    new_empty.default full_like.default zeros_like.default ones_like.default empty_like.default""",
    _make,
)
_each("linspace.default logspace.default", lambda t, d: iter((make_case(t, 0.0, 2.0, 6, dtype=F64),)))
_each("eye.default", lambda t, d: iter((make_case(t, 6, dtype=F64),)))
_each("eye.m", lambda t, d: iter((make_case(t, 6, 4, dtype=F64),)))
_each("hann_window.default hamming_window.default blackman_window.default", lambda t, d: iter((make_case(t, d.size() + 3, dtype=F64),)))
_each(
    "hann_window.periodic hamming_window.periodic blackman_window.periodic",
    lambda t, d: iter((make_case(t, d.size() + 3, False, dtype=F64),)),
)
_each("tril_indices.default triu_indices.default", lambda t, d: iter((make_case(t, 6, 4),)))
_each("arange.default", lambda t, d: iter((make_case(t, 6),)))
_each("arange.start", lambda t, d: iter((make_case(t, 2, 8),)))
_each("arange.start_step", lambda t, d: iter((make_case(t, 0, 12, 2),)))
_each("scalar_tensor.default", lambda t, d: iter((make_case(t, 2.5, dtype=F64),)))


def _update(t: str, d: Draw) -> Iterator[Case]:
    shape = (6, d.size())
    if t == "regista.sgd":
        yield make_case(t, d.real(*shape), d.real(*shape), None, 0.1, 0.0, 0.01, False)
        yield make_case(t, d.real(*shape), d.real(*shape), d.real(*shape), 0.1, 0.9, 0.0, True)
        yield make_case(t, d.real(12), d.real(12), d.real(12), 0.1, 0.9, 0.0, False)
        return
    for s in (shape, (12,), ()):
        step = torch.tensor(3.0)
        yield make_case(t, d.real(*s), d.real(*s), d.real(*s), d.positive(*s), step, 0.1, 0.9, 0.99, 1e-8, 0.01)


def _other_update(t: str, d: Draw) -> Iterator[Case]:
    step = torch.tensor(3.0)
    for s in ((6, d.size()), (12,)):
        param, grad, first, second, third = d.real(*s), d.real(*s), d.real(*s), d.positive(*s), d.positive(*s)
        match t:
            case "regista.adam":
                yield make_case(t, param, grad, first, second, step, None, 0.1, 0.9, 0.99, 1e-8, 0.01, False)
                yield make_case(t, param, grad, first, second, step, third, 0.1, 0.9, 0.99, 1e-8, 0.01, True)
            case "regista.adagrad":
                yield make_case(t, param, grad, second, step, 0.1, 0.5, 0.01, 1e-8)
            case "regista.rmsprop":
                yield make_case(t, param, grad, second, step, None, None, 0.1, 0.9, 1e-8, 0.01, 0.0)
                yield make_case(t, param, grad, second + first.square(), step, first, first / 2, 0.1, 0.9, 1e-8, 0.0, 0.9)
            case "regista.adamax":
                yield make_case(t, param, grad, first, second, step, 0.1, 0.9, 0.99, 1e-8, 0.01)
            case "regista.nadam":
                product = torch.tensor(0.2)
                yield make_case(t, param, grad, first, second, step, product, 0.1, 0.9, 0.99, 1e-8, 0.01, 0.004, False)
                yield make_case(t, param, grad, first, second, step, product, 0.1, 0.9, 0.99, 1e-8, 0.01, 0.004, True)
            case "regista.radam":
                for count in (1.0, 9.0):
                    yield make_case(t, param, grad, first, second, torch.tensor(count), 0.1, 0.9, 0.99, 1e-8, 0.01, count > 1)
            case "regista.adadelta":
                yield make_case(t, param, grad, second, third, step, 0.1, 0.9, 1e-6, 0.01)
            case "regista.adafactor" if len(s) == 1:
                yield make_case(t, param, grad, step, None, None, second, 0.1, -0.8, 1e-3, 1.0, 0.01, None)
            case "regista.adafactor":
                rows, columns = second.mean(1, keepdim=True), second.mean(0, keepdim=True)
                yield make_case(t, param, grad, step, rows, columns, None, 0.1, -0.8, 1e-3, 1.0, 0.0, 1e-6)
            case "regista.muon" if len(s) == 2:
                yield make_case(t, param, grad, first, 0.1, 0.01, 0.9, True, 3.4445, -4.775, 2.0315, 1e-7, 5, None)
                yield make_case(t, param, grad, first, 0.1, 0.0, 0.9, False, 3.4445, -4.775, 2.0315, 1e-7, 5, "match_rms_adamw")


def _row_update(t: str, d: Draw) -> Iterator[Case]:
    slots, step, b = torch.arange(12), torch.tensor(3.0), d.size()
    for padding in ((-1, -1), (2, 7)):
        table, first, second = d.real(12, 6), d.real(12, 6), d.positive(12, 6)
        looked_up = ([d.real(6, b, 6), d.real(4, 6)], [d.index(12, 6, b), d.index(12, 4)], slots)
        match t:
            case "regista.rows_sgd":
                yield make_case(t, table, *looked_up, 0.1, 12, padding)
            case "regista.rows_adagrad":
                yield make_case(t, table, *looked_up, second, step, 0.1, 0.5, 1e-8, 12, padding)
            case _:
                yield make_case(t, table, *looked_up, first, second, step, 0.1, 0.9, 0.99, 1e-8, 12, padding)


def _norm(t: str, d: Draw) -> Iterator[Case]:
    match t:
        case "regista.square_sum" | "regista.largest":
            yield make_case(t, d.real(6, d.size()))
            yield make_case(t, d.real(12))
            yield make_case(t, d.real())
        case "regista.add_norms" | "regista.join_norms":
            yield make_case(t, d.real(), d.real(), d.real())
            yield make_case(t, d.real())
        case _:
            yield make_case(t, d.positive(), 0.5, True, False)
            yield make_case(t, d.positive(), 2.0, False, True)


def _scaled(t: str, d: Draw) -> Iterator[Case]:
    match t:
        case "regista.overflow":
            large = d.real(6, d.size())
            large[3, 0] = torch.inf
            yield make_case(t, large)
            yield make_case(t, d.real(12))
            yield make_case(t, d.real())
        case "regista.kept_if":
            for overflowed in (0.0, 1.0):
                yield make_case(t, d.real(6, 4), d.real(6, 4), torch.tensor(overflowed))
            yield make_case(t, d.real(), d.real(), torch.tensor(1.0))
        case "regista.next_scale":
            yield make_case(t, d.positive(), torch.tensor(3), torch.tensor(0.0), 2.0, 0.5, 4)
            yield make_case(t, d.positive(), torch.tensor(1), torch.tensor(1.0), 2.0, 0.5, 4)
        case _:
            yield make_case(t, d.positive(), 4)


_each("regista.overflow regista.kept_if regista.next_scale regista.unscaling", _scaled)
_each("regista.square_sum regista.largest regista.add_norms regista.join_norms regista.clip_scale", _norm)
_each(
    "regista.moving_average", lambda t, d: iter((make_case(t, d.real(6, 4), d.real(6, 4), 0.9), make_case(t, d.real(12), d.real(12), 0.5)))
)
_each("regista.sgd regista.adamw", _update)
_each("regista.rows_sgd regista.rows_adagrad regista.rows_adam", _row_update)
_each("regista.adam regista.adagrad regista.rmsprop regista.adafactor regista.muon", _other_update)
_each("regista.adamax regista.nadam regista.radam regista.adadelta", _other_update)


def _draw(t: str, d: Draw) -> Iterator[Case]:
    state = torch.tensor((9 << 32) + 4), torch.tensor(2)
    for number, shape in enumerate(([6, d.size(), 12], [d.size(), 6], [12])):
        if t == "regista.dropout":
            yield make_case(t, d.real(*shape), *state, 0.6, 0.6, shape, [], draw=number)
            continue
        p = [0.3] if t == "regista.bernoulli" else []
        yield make_case(t, *state, shape, F64, *p, shape, [], draw=number)


_each("regista.uniform regista.bernoulli regista.dropout", _draw)
