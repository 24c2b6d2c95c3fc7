"""What tensors of a trace are told that are asked for their truth: what the check needs them to be, if it is one."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.functional_tensor import FunctionalTensor

import planner.frontend.tracing.checks.op  # noqa: F401  (torch.ops.regista.check)
from planner.frontend.tracing.checks.draws import outcome
from planner.frontend.tracing.checks.kept import Kept
from planner.frontend.tracing.checks.known import known_number
from planner.frontend.tracing.checks.statements import check_at, compares_number
from planner.frontend.tracing.source import calling_functions, calling_line

__all__ = ["Checks", "answer", "asked_in_make_fx", "checks_of_values", "number", "shown"]


class Checks:
    """The checks of one traced step, in their order.   results: 0-d zeros.   kept: state whose values it may ask for, and what stands for it."""

    def __init__(self) -> None:
        self.results: list[Tensor] = []
        self.kept: Mapping[Kept, Tensor] = {}

    def truth_of(self, tensor: Tensor, frame: FrameType) -> bool | None:
        """What the statement that ``frame`` is at needs the tensor to be; the check is made.  None: it is no check.

        Raises:
            RuntimeError: the tensor has more than one element.
        """
        needed = check_at(frame)
        if needed is None:
            return None
        if tensor.numel() != 1:
            raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous")
        line, text = calling_line(), needed.text
        if line is not None and line[0] != frame.f_code.co_filename:
            text = f"{text}, called by {calling_functions(1)[0]}"
        mask = tensor if tensor.dtype is torch.bool else tensor != 0
        self.results.append(torch.ops.regista.check(mask, needed.wanted, text))
        return needed.wanted

    def all_true(self, mask: Tensor) -> None:
        """``torch._check_tensor_all(mask)``: every element has to be true."""
        text = ", called by ".join(("'torch._check_tensor_all(...)'", *calling_functions(2)))
        self.results.append(torch.ops.regista.check(mask, True, text))

    @property
    def present(self) -> bool:
        """Whether there are any, those of state among them."""
        return bool(self.results) or any(kept.asked for kept in self.kept)

    def added_to(self, value: Tensor) -> Tensor:
        """The value, which now depends on all checks, those among them that state has the values that were asked for."""
        self.results += [made for kept, traced in self.kept.items() if (made := kept.check(traced)) is not None]
        for result in self.results:
            value = value + result.to(value.dtype)
        return value


_current: Checks | None = None


@contextmanager
def checks_of_values(checks: Checks) -> Iterator[None]:
    """Inside, ``answer``, ``number`` and ``torch._check_tensor_all`` make these checks."""

    def all_true(error: type[Exception], mask: Tensor, message: Any = None) -> None:
        if isinstance(mask, Tensor) and mask.dtype is torch.bool:
            checks.all_true(mask)
        else:
            of_torch(error, mask, message)  # type: ignore[no-untyped-call]  # which says what is wrong

    global _current
    before, _current = _current, checks
    of_torch, torch._check_tensor_all_with = torch._check_tensor_all_with, all_true
    try:
        yield
    finally:
        _current, torch._check_tensor_all_with = before, of_torch


@contextmanager
def asked_in_make_fx() -> Iterator[None]:
    """Tensors of make_fx's functional trace ask ``answer`` and ``number``, as the recorder's do."""

    def truth(tensor: FunctionalTensor) -> bool:
        told = answer(tensor)
        return bool(before(tensor)) if told is None else told

    def item(tensor: FunctionalTensor) -> Any:
        told = number(tensor)
        return Tensor.item(tensor) if told is None else told

    def formatted(tensor: FunctionalTensor, _spec: str) -> str:
        return shown(tensor)

    def integer(tensor: FunctionalTensor) -> int:
        return int(tensor.item())

    def real(tensor: FunctionalTensor) -> float:
        return float(tensor.item())

    methods = {"__bool__": truth, "item": item, "__format__": formatted, "__int__": integer, "__index__": integer, "__float__": real}
    before = FunctionalTensor.__bool__
    for name, method in methods.items():
        setattr(FunctionalTensor, name, method)
    try:
        yield
    finally:
        for name in methods.keys() - {"__bool__"}:
            delattr(FunctionalTensor, name)
        FunctionalTensor.__bool__ = before  # type: ignore[method-assign]


def shown(tensor: Tensor) -> str:
    """A tensor without values in the messages that a module writes, as those of its checks."""
    return f"a tensor {list(tensor.shape)} without values"


def answer(tensor: Tensor, depth: int = 2) -> bool | None:
    """What ``bool(tensor)`` is while a step is traced; None: it depends on data that is not there yet.

    Args:
        depth: how many frames above this one the statement is that asks for it.
    """
    if _current is None:
        return None
    if (value := known_number(tensor)) is not None:
        return bool(value)
    told = _current.truth_of(tensor, sys._getframe(depth))
    told = outcome(tensor) if told is None else told
    return bool(value) if told is None and (value := known_number(tensor, state=True)) is not None else told


def number(tensor: Tensor, depth: int = 2) -> Tensor | float | None:
    """The result of ``tensor.item()`` during tracing; None: it depends on values that are unknown then.

    Where a check compares it (``assert x.item() < 3``) it is the tensor itself, so that the comparison becomes part of the graph.
    """
    if _current is None:
        return None
    if (value := known_number(tensor)) is not None:
        return value  # type: ignore[no-any-return]
    frame = sys._getframe(depth)
    if tensor.dtype is torch.bool:
        told = _current.truth_of(tensor, frame)
        told = outcome(tensor) if told is None else told
        if told is not None:
            return told
    elif tensor.numel() == 1 and compares_number(frame):
        return tensor
    return known_number(tensor, state=True)  # type: ignore[no-any-return]
