"""A StableHLO loss as a torch module: parameters by name in modules of their own, and a forward that performs the listing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from planner.frontend.stablehlo.listing import Listing, Operation
from planner.frontend.stablehlo.paths import module_paths
from planner.frontend.stablehlo.performing import Value, perform

__all__ = ["LossModule", "Shapes"]

Shapes = tuple[tuple[int, ...], ...]
"""The shapes of the batch's arrays."""


class _Scope(nn.Module):
    """A module that holds parameters and lets operations run as its forward, so that they count as its own."""

    def forward(self, run: Callable[[], Value]) -> Value:
        return run()


class LossModule(nn.Module):
    """module(*batch) -> scalar loss.

    Args:
        at: shapes of a batch -> the listing that computes the loss of such a batch from ``state`` and the batch.
        state: inputs of the listing that the module holds: input -> (name, first value).   trained: which of them are parameters.
        batch: inputs of the listing that are the batch, in order.
    """

    def __init__(
        self, at: Callable[[Shapes], Listing], state: Mapping[int, tuple[str, Tensor]], trained: frozenset[int], batch: Sequence[int]
    ) -> None:
        super().__init__()
        self._names = {number: name for number, (name, _) in state.items()}
        self._batch = tuple(batch)
        for number, (name, value) in state.items():
            holder, leaf = self._holder(name)
            if number in trained:
                holder.register_parameter(leaf, nn.Parameter(value))
            else:
                holder.register_buffer(leaf, value)

        # Kept in a cache of Python's and in no attribute: what forward works out for a shape is no state that the next step could see.
        @lru_cache(maxsize=16)
        def lowered(shapes: Shapes) -> tuple[Listing, dict[int, str]]:
            with _disable_current_modes():  # what is looked up in constants is no part of a trace
                listing = at(shapes)
            return listing, module_paths(listing, self._names)

        self._lowered = lowered

    def _holder(self, name: str) -> tuple[nn.Module, str]:
        *parts, leaf = name.split(".")
        holder: nn.Module = self
        for part in parts:
            if part not in holder._modules:
                holder.add_module(part, _Scope())
            holder = holder.get_submodule(part)
        return holder, leaf if leaf not in holder._modules and not hasattr(holder, leaf) else f"{leaf}_"

    def forward(self, *batch: Tensor) -> Tensor:
        listing, paths = self._lowered(tuple(tuple(tensor.shape) for tensor in batch))
        held = dict(self.named_parameters(remove_duplicate=False)) | dict(self.named_buffers(remove_duplicate=False))
        inputs = {number: held[name] for number, name in self._names.items()} | dict(zip(self._batch, batch, strict=True))

        def around(operation: Operation) -> Callable[[Callable[[], Value]], Value]:
            path = paths.get(operation.results[0], "")
            return self.get_submodule(path) if path else _run

        (loss,) = perform(listing, inputs, around=around)
        return loss


def _run(function: Callable[[], Value]) -> Value:
    return function()
