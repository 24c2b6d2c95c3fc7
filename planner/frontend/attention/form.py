"""The form in which attention stands in a graph: one op, or the products and the softmax that it is made of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum

from planner.ir.errors import InvalidProgram

__all__ = ["Attention", "attention_in", "attention_of", "is_whole"]


class Attention(Enum):
    """FUSED: one op each way, which keeps its output and a number per row.   EAGER: products and a softmax, which keep all weights."""

    FUSED = "fused"
    EAGER = "eager"


_FORM: ContextVar[Attention] = ContextVar("attention", default=Attention.FUSED)


def attention_of(form: Attention | str) -> Attention:
    """The form by its name.  Raises InvalidProgram: it has no such name."""
    names = [known.value for known in Attention]
    if isinstance(form, Attention) or form in names:
        return Attention(form)
    raise InvalidProgram(f"attention {form!r} is not known; choose from {', '.join(names)}")


@contextmanager
def attention_in(form: Attention) -> Iterator[None]:
    """What is traced within has attention in this form."""
    token = _FORM.set(form)
    try:
        yield
    finally:
        _FORM.reset(token)


def is_whole() -> bool:
    """Whether attention is traced as one op."""
    return _FORM.get() is Attention.FUSED
