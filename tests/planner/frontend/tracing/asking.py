"""What modules ask the values of a tensor [8, 16] that is >= 0.  No test module, since pytest writes the asserts of those anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = [
    "PERFORMED",
    "REFUSED",
    "asks_many",
    "checked_by_torch",
    "asserted",
    "asserted_of_two",
    "never",
    "of_a_maximum_of_floats",
    "raised",
    "raised_of_integers",
    "raised_unless",
    "within_bounds",
]


def asserted(h: Tensor) -> None:
    assert torch.isfinite(h).all(), "not finite"


def asserted_of_two(h: Tensor) -> None:
    assert h.min() >= 0 and not h.max() > 1000


def asserted_between(h: Tensor) -> None:
    assert -1 < h.sum() < 1e6


def raised(h: Tensor) -> None:
    if torch.isnan(h).any() or (h < 0).any():
        text = f"bad values in {tuple(h.shape)}"
        raise ValueError(text)


def raised_unless(h: Tensor) -> None:
    if not (h >= 0).all():
        raise ValueError


def raised_of_integers(h: Tensor) -> None:
    if h.long().max() >= 1000 or h.long().min() < 0:
        raise IndexError


def of_a_maximum_of_floats(h: Tensor) -> None:
    if h.max() > 1000:
        raise ValueError


def never(h: Tensor) -> None:
    assert h.sum() < 0, "never"


def branch(h: Tensor) -> Tensor:
    return h * 2 if h.sum() > 0 else h


def raise_in_one_way_return_in_the_other(h: Tensor) -> Tensor:
    if h.sum() > 0:
        return h
    raise ValueError


def caught(h: Tensor) -> None:
    try:
        assert h.sum() < 0
    except AssertionError:
        h.mul_(2)


def assert_either(h: Tensor) -> None:
    assert h.sum() > 0 or h.min() < 0


def raise_if_both(h: Tensor) -> None:
    if h.sum() > 0 and h.min() > 0:
        raise ValueError


def not_between(h: Tensor) -> None:
    assert not 0 < h.sum() < 1


def number_in_a_sum(h: Tensor) -> None:
    assert h.sum().item() + 1 > 0


def kept(h: Tensor) -> None:
    large = bool(h.sum() > 0)
    assert large


def in_a_loop(h: Tensor) -> None:
    while h.sum() > 0:
        raise ValueError


def of_numbers(h: Tensor) -> None:
    assert h.max().item() < 1000 and bool((h >= 0).all())


def all_checked_by_torch(h: Tensor) -> None:
    torch._check_tensor_all(h >= 0, lambda: "negative")


def told_of(h: Tensor) -> None:
    """The message is written whether the check holds or not."""
    torch._check_tensor_all(h >= 0, f"among {h.numel()} the least is {h.min():.3f} of {h}")  # type: ignore[arg-type]


def checked_by_torch(h: Tensor) -> None:
    torch._check_tensor_all(h < 0)


def within_bounds(h: Tensor) -> None:
    assert (h >= 0).all()
    if (h > 100).any():
        raise ValueError


def any_of_them(h: Tensor) -> None:
    assert any([h.sum() < 0, h.sum() >= 0])


def among_them(h: Tensor) -> None:
    assert h.sum() in (h.min(), h.sum())


def not_all_of_them(h: Tensor) -> None:
    if not all([h.sum() < 0, h.sum() >= 0]):
        raise ValueError


def asks_many(h: Tensor) -> None:
    assert h > 0


PERFORMED: Sequence[Callable[[Tensor], object]] = (
    asserted,
    asserted_of_two,
    asserted_between,
    raised,
    raised_unless,
    raised_of_integers,
    of_numbers,
    all_checked_by_torch,
    told_of,
)
REFUSED: Sequence[Callable[[Tensor], object]] = (
    branch,
    raise_in_one_way_return_in_the_other,
    caught,
    assert_either,
    raise_if_both,
    not_between,
    number_in_a_sum,
    kept,
    in_a_loop,
    any_of_them,
    among_them,
    not_all_of_them,
)
