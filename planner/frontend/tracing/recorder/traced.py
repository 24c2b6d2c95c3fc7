"""Tensors without values, which stand for a module's tensors while the Recorder traces it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from planner.frontend.tracing.checks.asked import answer, number, shown
from planner.frontend.tracing.checks.known import known_numbers
from planner.frontend.tracing.recorder.views import View

__all__ = ["Aliases", "TensorMeta", "Traced", "NotRecordable", "geometry"]

_CPU = torch.device("cpu")


class NotRecordable(Exception):
    """The recorder cannot trace this.  make_fx does, or says better what is wrong (planner.frontend.tracing.trace)."""


class TensorMeta:
    """Shape, strides and dtype of a tensor; equal ones are one object (of one Recorder), so it can stand in a key.

    example: a fake tensor of that shape, strides and dtype.
    """

    __slots__ = ("dtype", "example", "offset", "shape", "strides")

    def __init__(self, example: Tensor) -> None:
        self.shape, self.strides, self.offset, self.dtype = geometry(example)
        self.example = example


def geometry(tensor: Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int, torch.dtype]:
    """Shape, strides, offset and dtype: what the type of an op's result depends on."""
    return tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()), tensor.dtype


class Aliases:
    """A base tensor and its views, which share memory (views.py).

    node, meta: node and type of the base's current value; node None: the base is a constant, which no op may write.
    generation: how often one of them was written.   moved: a write has left a value of other strides.
    renew: recomputes a view of an earlier generation from the base's current value.
    """

    __slots__ = ("generation", "meta", "moved", "node", "renew")

    def __init__(self, node: fx.Node | None, meta: TensorMeta) -> None:
        self.node, self.meta, self.generation, self.moved = node, meta, 0, False
        self.renew: Callable[[Traced], None] | None = None


class Traced(Tensor):
    """A tensor without values, the result of a node of the graph that is recorded.

    aliases: shared with the tensors that are views of it, or it of them.   chain: the view ops that it is behind.
    made, generation: the node whose result it was in that generation of its aliases.
    """

    made: fx.Node
    meta: TensorMeta
    aliases: Aliases
    chain: tuple[View, ...]
    generation: int

    # by the module of its class libraries tell whose tensor it is (opt_einsum)
    __module__ = "torch"
    # without this every attribute that is read goes through Python
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def make(meta: TensorMeta, node: fx.Node) -> Traced:
        made: Traced = Tensor._make_wrapper_subclass(
            Traced, meta.shape, strides=meta.strides, storage_offset=meta.offset, dtype=meta.dtype, device=_CPU
        )
        made.made, made.meta, made.aliases = node, meta, Aliases(node, meta)
        made.chain, made.generation = (), 0
        return made

    @property
    def node(self) -> fx.Node:
        """The node whose result it is now."""
        if self.generation != self.aliases.generation and self.aliases.renew is not None:
            self.aliases.renew(self)
        return self.made

    def __bool__(self) -> bool:
        told = answer(self)
        return Tensor.__bool__(self) if told is None else told

    def item(self) -> Any:
        """What a check asks, which is answered; else the recorder refuses."""
        told = number(self)
        return Tensor.item(self) if told is None else told

    def tolist(self) -> Any:
        """Of what is computed of constants, and of state that no step changes; else the recorder refuses."""
        value = known_numbers(self, state=True)
        if value is None:
            raise NotRecordable("values are asked for")
        return value

    def __format__(self, _spec: str) -> str:
        return shown(self)

    __repr__ = shown  # type: ignore[assignment]

    def _take(self, value: Tensor) -> None:
        """``tensor.data = value``: from here on the tensor has that value and its memory; views of what it was stay what they are."""
        if type(value) is not Traced or value.meta is not self.meta:
            raise NotRecordable("a tensor whose .data becomes one of another type")
        self.made, self.aliases, self.chain, self.generation = value.made, value.aliases, value.chain, value.generation

    data = property(Tensor.data.__get__, _take)  # type: ignore[attr-defined]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: object, types: object, args: object = (), kwargs: object = None
    ) -> object:
        raise NotRecordable(f"{func} outside the recorder")
