"""Which dim of each input is the batch: as the user says, or found by extents.

Found: the first input with dims has the batch in dim 0, and so has every input with that extent there.  An extent may be equal by chance;
planner.frontend.trial looks into that before a batch is cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass

from torch import Tensor

from planner.ir.errors import InvalidProgram

__all__ = ["BatchDim", "BatchDims", "resolved"]

BatchDim = int | None | Sequence[object] | Mapping[str, object]
"""One dim for all inputs, or a dim (None: no batch) for each: in the form of the batch, or a flat sequence.  None alone: found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDims:
    """dims: per input the dim that micro-batches slice, or None.   size: samples.   given: by the user, not found."""

    dims: tuple[int | None, ...]
    size: int
    given: bool

    def check(self, micro_batches: int) -> None:
        """Raises InvalidProgram: so many micro-batches do not divide the batch."""
        if micro_batches < 1 or self.size % micro_batches:
            divisors = [d for d in range(1, self.size + 1) if self.size % d == 0]
            raise InvalidProgram(f"{micro_batches} micro-batches do not divide a batch of {self.size}; choose one of {divisors}")

    def sliced(self, tensors: Sequence[Tensor], micro_batches: int, index: int) -> tuple[Tensor, ...]:
        """Micro-batch ``index`` of the inputs of a global batch; an input without batch is seen whole."""
        size = self.size // micro_batches
        return tuple(t if dim is None else t.narrow(dim, index * size, size) for t, dim in zip(tensors, self.dims, strict=True))


def resolved(given: BatchDim, example: object, inputs: Sequence[Tensor]) -> BatchDims:
    """The batch dims of the inputs.

    Args:
        example: the batch in its form.   inputs: its tensors, in order.

    Raises:
        InvalidProgram: there is no batch, or what was given does not fit the inputs.
    """
    if given is None:
        batched = next((t for t in inputs if t.ndim), None)
        if batched is None or batched.shape[0] == 0:
            raise InvalidProgram("example_inputs must hold a tensor whose dim 0 is the batch, of at least one sample; or give batch_dim=")
        size = int(batched.shape[0])
        return BatchDims(dims=tuple(0 if t.ndim and t.shape[0] == size else None for t in inputs), size=size, given=False)
    dims = tuple(_legal(dim, index, t) for index, (dim, t) in enumerate(zip(_listed(given, example, inputs), inputs, strict=True)))
    extents = {f"input.{i} dim {dim}": int(t.shape[dim]) for i, (t, dim) in enumerate(zip(inputs, dims, strict=True)) if dim is not None}
    if not extents:
        raise InvalidProgram("batch_dim= names no input that has the batch; at least one input must be cut")
    if len(set(extents.values())) > 1:
        shown = ", ".join(f"{name} has {extent}" for name, extent in extents.items())
        raise InvalidProgram(
            f"the inputs of one batch have as many samples each, but {shown}; give batch_dim= per input, None for no batch"
        )
    size = next(iter(extents.values()))
    if size == 0:
        raise InvalidProgram("the batch has no sample; give example_inputs with at least one")
    return BatchDims(dims=dims, size=size, given=True)


def _listed(given: BatchDim, example: object, inputs: Sequence[Tensor]) -> Sequence[object]:
    if (
        isinstance(given, list | tuple)
        and len(given) == len(inputs)
        and not any(isinstance(entry, list | tuple | Mapping) for entry in given)
    ):
        return given
    return list(_in_form(example, given, "batch_dim="))


def _in_form(example: object, given: object, where: str) -> Iterator[object]:
    """The dims of the example's tensors; one that is given for a container is of all tensors in it that have dims."""
    if isinstance(example, Tensor):
        yield given
        return
    entries = _entries(example)
    if not isinstance(given, list | tuple | Mapping):
        for _, entry in entries:
            yield from _in_form(entry, None if isinstance(entry, Tensor) and not entry.ndim else given, where)
        return
    dims = list(given.items()) if isinstance(given, Mapping) else list(enumerate(given))
    if [key for key, _ in dims] != [key for key, _ in entries] and {key for key, _ in dims} != {key for key, _ in entries}:
        raise InvalidProgram(
            f"{where} has entries for {', '.join(str(key) for key, _ in dims)}, the inputs are {', '.join(str(key) for key, _ in entries)}; "
            "give one each, None for no batch"
        )
    by_key = dict(dims)
    for key, entry in entries:
        yield from _in_form(entry, by_key[key], f"{where}[{key!r}]")


def _entries(example: object) -> list[tuple[object, object]]:
    if isinstance(example, Mapping):
        return list(example.items())
    if isinstance(example, list | tuple):
        return list(enumerate(example))
    if is_dataclass(example):
        return [(field.name, getattr(example, field.name)) for field in fields(example)]
    return []


def _legal(dim: object, index: int, tensor: Tensor) -> int | None:
    if dim is None:
        return None
    if not isinstance(dim, int) or isinstance(dim, bool):
        raise InvalidProgram(f"batch_dim= of input.{index} is {dim!r}; give the number of a dim, or None for no batch")
    if not -tensor.ndim <= dim < tensor.ndim:
        raise InvalidProgram(f"batch_dim={dim}: input.{index} has shape {list(tensor.shape)}; give batch_dim= per input, None for no batch")
    return dim % tensor.ndim
