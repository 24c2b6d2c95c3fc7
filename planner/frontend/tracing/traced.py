"""The tensors that a module computes with while it is recorded (record.py)."""

from __future__ import annotations

import torch
from torch import Tensor, fx

__all__ = ["Aliases", "Kind", "Traced", "Unfit", "geometry"]

_CPU = torch.device("cpu")


class Unfit(Exception):
    """The short way cannot follow here.  Never seen by users: the long way follows, or says what is wrong."""


class Kind:
    """Shape, strides and dtype of a tensor; equal ones are one object (of one Recorder), so it can stand in a key.

    example: a fake tensor of the kind.
    """

    __slots__ = ("dtype", "example", "offset", "shape", "strides")

    def __init__(self, example: Tensor) -> None:
        self.shape, self.strides, self.offset, self.dtype = geometry(example)
        self.example = example


def geometry(tensor: Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int, torch.dtype]:
    """Shape, strides, offset and dtype: what makes two tensors of one kind."""
    return tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()), tensor.dtype


class Aliases:
    """A tensor and its views: how many they are, and whether one was written."""

    __slots__ = ("count", "written")

    def __init__(self) -> None:
        self.count, self.written = 1, False


class Traced(Tensor):
    """A tensor without values: what the module computes with while it is recorded.

    node: the node whose result it is now.   aliases: shared with the tensors that are views of it, or it of them.
    """

    node: fx.Node
    kind: Kind
    aliases: Aliases

    # without this every attribute that is read goes through Python
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def make(kind: Kind, node: fx.Node) -> Traced:
        made: Traced = Tensor._make_wrapper_subclass(
            Traced, kind.shape, strides=kind.strides, storage_offset=kind.offset, dtype=kind.dtype, device=_CPU
        )
        made.node, made.kind, made.aliases = node, kind, Aliases()
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: object, types: object, args: object = (), kwargs: object = None
    ) -> object:
        raise Unfit(f"{func} outside the recorder")
