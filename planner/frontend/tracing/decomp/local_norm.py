"""Over which parts of a batch a batch norm takes its statistics: over the whole, or over each part, as under torch's DistributedDataParallel.

one part       x [N, C, ..]                              statistics [C]: sums over N and ..
local          x [N, C, ..] = [parts, N/parts, C, ..]    statistics [parts, C]: sums over N/parts and ..
               gradients of weight and bias: sums over parts as well
               running statistics: of the first part, as a checkpoint of the first rank has them

The parts are a dim of their own: split over the devices it costs no communication, and any other layout gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from planner.frontend.tracing.decomp.precision import widened
from planner.ir.errors import InvalidProgram, Unsupported

__all__ = ["WHOLE", "Parts", "asked_parts", "check_batch_norms", "statistics_of_parts"]


@dataclass(frozen=True, slots=True)
class Parts:
    """So many parts of equal size, one after the other.  In a value of one part, the batch and the channels are dims 0 and 1, else 1 and 2."""

    number: int

    def split(self, x: Tensor) -> Tensor:
        """x [N, C, ..] in parts, in the format that sums are taken in.

        Raises:
            InvalidProgram: the parts do not divide N.
        """
        if self.number == 1:
            return widened(x)
        if x.shape[0] % self.number:
            raise InvalidProgram(
                f"batch norm over each of {self.number} parts (--batch-norm local) needs as many samples in each, but a micro-batch has "
                f"{x.shape[0]}; choose micro-batches that {self.number} divides, or --batch-norm global"
            )
        return torch.reshape(widened(x), [self.number, x.shape[0] // self.number, *x.shape[1:]])

    def joined(self, value: Tensor, x: Tensor) -> Tensor:
        """A value in parts in the shape of x."""
        return value if self.number == 1 else torch.reshape(value, x.shape)

    def dims(self, x: Tensor) -> list[int]:
        """What a statistic is a sum over."""
        batch = 0 if self.number == 1 else 1
        return [batch, *range(batch + 2, batch + x.ndim)]

    def count(self, x: Tensor) -> int:
        """How many elements of x are added up in a statistic."""
        return x.numel() // x.shape[1] // self.number

    def per_part(self, statistic: Tensor, x: Tensor) -> Tensor:
        """A statistic as it stands beside x in parts."""
        parts = [] if self.number == 1 else [self.number]
        return torch.reshape(statistic, [*parts, 1, x.shape[1]] + [1] * (x.ndim - 2))

    def per_channel(self, weight: Tensor, x: Tensor) -> Tensor:
        """[C] as it stands beside x in parts."""
        parts = [] if self.number == 1 else [1]
        return torch.reshape(weight, [*parts, 1, x.shape[1]] + [1] * (x.ndim - 2))

    def first(self, statistic: Tensor) -> Tensor:
        """The statistic of the first part, [C]."""
        return statistic if self.number == 1 else torch.squeeze(torch.narrow(statistic, 0, 0, 1), 0)

    def total(self, statistic: Tensor) -> Tensor:
        """The sum over all parts, [C]."""
        return statistic if self.number == 1 else torch.sum(statistic, [0])


WHOLE = Parts(1)

_ASKED: ContextVar[Parts] = ContextVar("parts", default=WHOLE)


def asked_parts() -> Parts:
    """Over what batch norms that train take their statistics here."""
    return _ASKED.get()


@contextmanager
def statistics_of_parts(parts: int) -> Iterator[None]:
    """What is traced within takes batch norms over each of ``parts`` parts of the batch; 1: over the whole."""
    token = _ASKED.set(Parts(parts))
    try:
        yield
    finally:
        _ASKED.reset(token)


def check_batch_norms(module: nn.Module) -> None:
    """Raises Unsupported: local statistics are asked for, and the module has no batch norm, or one that asks for global ones."""
    norms_by_name = {name: child for name, child in module.named_modules() if isinstance(child, nn.modules.batchnorm._BatchNorm)}
    if not norms_by_name:
        raise Unsupported("batch norm local was asked for, and the module has no batch norm; leave it out")
    if synchronised := [name for name, child in norms_by_name.items() if isinstance(child, nn.SyncBatchNorm)]:
        raise Unsupported(
            f"batch norm local was asked for, and {synchronised[0]} is a SyncBatchNorm, whose statistics are global; leave the option out, or "
            "build the module with BatchNorm"
        )
