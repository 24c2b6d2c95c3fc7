"""What carries the bytes of a communicator: the calls that a collective is made of (backend.comm.collectives), on one rank.

memory    processes of one host, on CPUs (backend.comm.host.wire)
gloo      processes of several hosts, and ranks that share one GPU: NCCL refuses two ranks on one device
NCCL      a GPU per rank; it reduces and scatters in one call.  No GPU has run it yet
double    NCCL's rules without hardware (backend.comm.nccl_double)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from planner.ir.sbp import ReduceOp

__all__ = ["GroupWire", "StagedWire", "Wire"]

_REDUCE = {ReduceOp.SUM: dist.ReduceOp.SUM, ReduceOp.MIN: dist.ReduceOp.MIN, ReduceOp.MAX: dist.ReduceOp.MAX}


class Wire(Protocol):
    """A communicator of one rank; every rank of it makes the same calls in the same order.  Tensors are flat, lengths count elements.

    scatters: reduce_scatter is one call of it; otherwise all-to-all and a sum of one's own move half the bytes of what it would do.
    """

    scatters: bool

    def all_reduce(self, tensor: Tensor, op: ReduceOp, sent: Tensor | None = None) -> None:
        """In place; ``sent``: of these values, of as many elements, instead of those in ``tensor``."""

    def all_gather(self, gathered: Tensor, sent: Tensor) -> None:
        """Equal lengths of all ranks, one behind the other."""

    def all_to_all(self, received: Tensor, sent: Tensor, receive_lengths: Sequence[int], send_lengths: Sequence[int]) -> None:
        """A length per neighbour."""

    def reduce_scatter(self, reduced: Tensor, sent: Tensor, op: ReduceOp) -> None:
        """``sent`` holds equal parts, one for each rank; only where ``scatters``."""


class GroupWire:
    """A process group of torch.distributed: gloo's, or NCCL's, whose calls go to the current stream."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.scatters = dist.get_backend(group) == "nccl"

    def connect(self, device: torch.device) -> None:
        """Make the connections now: NCCL would make its communicator in the first collective, when ranks do so in the order of their acts."""
        dist.all_reduce(torch.zeros(1, device=device), group=self._group)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def all_reduce(self, tensor: Tensor, op: ReduceOp, sent: Tensor | None = None) -> None:
        if sent is not None:
            tensor.copy_(sent)
        dist.all_reduce(tensor, _REDUCE[op], group=self._group)

    def all_gather(self, gathered: Tensor, sent: Tensor) -> None:
        dist.all_gather_into_tensor(gathered, sent, group=self._group)

    def all_to_all(self, received: Tensor, sent: Tensor, receive_lengths: Sequence[int], send_lengths: Sequence[int]) -> None:
        dist.all_to_all_single(received, sent, list(receive_lengths), list(send_lengths), group=self._group)

    def reduce_scatter(self, reduced: Tensor, sent: Tensor, op: ReduceOp) -> None:
        dist.reduce_scatter_tensor(reduced, sent, _REDUCE[op], group=self._group)


class StagedWire:
    """A wire of the host under tensors of a device: each is copied to the host's memory and back."""

    def __init__(self, wire: Wire) -> None:
        self._wire, self.scatters = wire, wire.scatters

    def all_reduce(self, tensor: Tensor, op: ReduceOp, sent: Tensor | None = None) -> None:
        staged = (tensor if sent is None else sent).cpu()
        self._wire.all_reduce(staged, op)
        tensor.copy_(staged)

    def all_gather(self, gathered: Tensor, sent: Tensor) -> None:
        staged = gathered.new_empty(gathered.shape, device="cpu")
        self._wire.all_gather(staged, sent.cpu())
        gathered.copy_(staged)

    def all_to_all(self, received: Tensor, sent: Tensor, receive_lengths: Sequence[int], send_lengths: Sequence[int]) -> None:
        staged = received.new_empty(received.shape, device="cpu")
        self._wire.all_to_all(staged, sent.cpu(), receive_lengths, send_lengths)
        received.copy_(staged)

    def reduce_scatter(self, reduced: Tensor, sent: Tensor, op: ReduceOp) -> None:
        staged = reduced.new_empty(reduced.shape, device="cpu")
        self._wire.reduce_scatter(staged, sent.cpu(), op)
        reduced.copy_(staged)
