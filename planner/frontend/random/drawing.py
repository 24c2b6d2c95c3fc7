"""Where draws come from while a step is traced or performed eagerly: the seed, the step, the micro-batch, and the number of the next draw.

The number stands in torch's own generator, as its seed: the first draw of a forward pass has number 0.  So what saves and restores the state of
the generator around a part that runs again (torch.utils.checkpoint) repeats its numbers, and with them its draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses.functional_tensor import FunctionalTensor

from planner.ir.errors import InvalidProgram

__all__ = ["Drawing", "drawing"]

_CURRENT: ContextVar[Drawing | None] = ContextVar("drawing", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """seed, steps: int64 scalars;  micro_batch: number of the one that is computed."""

    seed: Tensor
    steps: Tensor
    micro_batch: int = 0

    @staticmethod
    def current() -> Drawing:
        """Raises InvalidProgram: nothing says what is drawn."""
        present = _CURRENT.get()
        if present is None:
            raise InvalidProgram("a random op is traced outside of a step, so nothing says which numbers it draws")
        return present

    @property
    def state(self) -> tuple[Tensor, Tensor]:
        """Seed and steps as ops below functionalization take them."""
        return _plain(self.seed), _plain(self.steps)

    def next_number(self) -> int:
        """The number of the next draw, between 0 and 2^32 - 1."""
        generator = torch.default_generator
        number = generator.initial_seed()
        generator.manual_seed(number + 1)
        return number & 0xFFFFFFFF


def _plain(tensor: Tensor) -> Tensor:
    return torch._from_functional_tensor(tensor.elem) if isinstance(tensor, FunctionalTensor) else tensor


@contextmanager
def drawing(values: Drawing) -> Iterator[None]:
    """Random ops draw from ``values``; numbers begin at 0.  torch's generator is put back as it was."""
    before = torch.default_generator.get_state()
    token = _CURRENT.set(values)
    torch.default_generator.manual_seed(0)
    try:
        yield
    finally:
        _CURRENT.reset(token)
        torch.default_generator.set_state(before)
