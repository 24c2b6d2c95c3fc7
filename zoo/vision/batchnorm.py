"""Batch norm whose statistics are over parts of the batch, said in the model and not decided by where it runs.

A plan means what one device would compute, so batch norm over a split batch adds its sums up over the devices (they are P): exact, and
two small all-reduces per layer.  Frameworks that keep each device's own statistics train another model; here that model is written down:
with ``groups`` equal to the number of devices every group lies on one device and nothing is sent.  A group of micro-batch size N / groups
has its own mean and variance; the running ones take the average over the groups.      [Hoffer et al. 2017, "ghost batch norm", arXiv 1705.08741]
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from planner.ir.errors import InvalidProgram

__all__ = ["GroupedBatchNorm", "batch_norm"]


class GroupedBatchNorm(nn.BatchNorm2d):
    """(batch, channels, ...) -> the same; samples k batch / groups and on form group k.  In eval mode ordinary batch norm."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__(channels)
        self.groups = groups

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of dims."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        if x.shape[0] % self.groups:
            raise InvalidProgram(
                f"batch norm over {self.groups} groups: a (micro-)batch of {x.shape[0]} cannot be cut so; choose a divisor"
            )
        apart = x.view(self.groups, x.shape[0] // self.groups, *x.shape[1:])
        dims = [1, *range(3, apart.ndim)]
        count = apart.numel() // (self.groups * x.shape[1])
        mean = apart.mean(dims, keepdim=True)
        centred = apart - mean
        var = (centred * centred).mean(dims, keepdim=True)
        scale, shift = (p.view(1, 1, -1, *[1] * (apart.ndim - 3)) for p in (self.weight, self.bias))
        with torch.no_grad():
            self._track(mean.view(self.groups, -1), var.view(self.groups, -1) * (count / max(count - 1, 1)))
        out: Tensor = (centred * torch.rsqrt(var + self.eps) * scale + shift).view(x.shape)
        return out

    def _track(self, mean: Tensor, var: Tensor) -> None:
        momentum = 0.1 if self.momentum is None else self.momentum
        self.num_batches_tracked.add_(1)
        self.running_mean.mul_(1 - momentum).add_(mean.mean(0) * momentum)
        self.running_var.mul_(1 - momentum).add_(var.mean(0) * momentum)


def batch_norm(channels: int, groups: int) -> nn.Module:
    """Over the whole (micro-)batch if groups is 1."""
    return nn.BatchNorm2d(channels) if groups == 1 else GroupedBatchNorm(channels, groups)
