"""Packed sequences while they are traced: the padded batch and the length of each sequence, since no shape of a graph depends on values.

    pack_padded_sequence   x [T, N, I], lengths [N]   ->   x, zero behind the end of each sequence, in the order in which they came
    a layer                (1) forward: y_t of the padded batch, as it depends on x_0 ... x_t alone
                           (2) reverse: each sequence is turned round within its length, passes forward, and is turned round again
                           (3) last states: those of step lengths - 1.  The cell of an LSTM stays what it is there: one more input, 1 behind
                               the end, closes the input gate and opens the forget gate, c = 1 * c + 0 * g
    pad_packed_sequence    the padding value behind the end of each sequence

What padding makes is never read, so that no gradient comes from it.  A length below 1 or above T, and
lengths that do not decrease where enforce_sorted says so, end the step that performs them (regista.sequence_lengths, each device those that it has).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn.utils import rnn
from torch.nn.utils.rnn import PackedSequence

from planner.frontend.recurrent.lengths import check_lengths
from planner.ir.errors import InvalidProgram

__all__ = ["BatchSizes", "PackedData", "packed_sequences", "padded_steps"]

_HOLD = 1e4
"""Beyond which every dtype's sigmoid is 0 or 1."""


def _refused(self: object, *_: object, **__: object) -> NoReturn:
    raise InvalidProgram(
        "the data and batch_sizes of a PackedSequence let a value decide what is computed: their shapes depend on the lengths; "
        "do it to the padded batch, before pack_padded_sequence or after pad_packed_sequence, and mask its output"
    )


class _OfLayersAlone:
    """What only recurrent layers and pad_packed_sequence may read."""

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __matmul__ = __neg__ = __len__ = _refused

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        _refused(self)

    @classmethod
    def __torch_function__(cls, *_: object, **__: object) -> NoReturn:
        _refused(cls)


@dataclass(frozen=True, slots=True, eq=False)
class PackedData(_OfLayersAlone):
    """Stands for ``PackedSequence.data``.   padded: [T, N, I].   lengths: [N].   known: the lengths where they are Python numbers."""

    padded: Tensor
    lengths: Tensor
    known: tuple[int, ...] | None

    __getitem__ = _refused

    def __getattr__(self, name: str) -> Any:
        return getattr(self.padded, name) if name in ("dtype", "device", "is_cuda") else super().__getattr__(name)

    def dim(self) -> int:
        """Of the packed form: all steps of all sequences are one dim."""
        return 2

    def size(self, dim: int) -> int:
        """Of the last dim, the only one whose extent no value decides."""
        return self.padded.size(-1) if dim in (1, -1) else _refused(self)

    def of(self, padded: Tensor) -> PackedData:
        """Other values of sequences of these lengths."""
        return PackedData(padded, self.lengths, self.known)

    def to(self, *args: Any, **kwargs: Any) -> PackedData:
        """Tensor.to."""
        moved = self.padded.to(*args, **kwargs)
        return self if moved is self.padded else self.of(moved)


@dataclass(frozen=True, slots=True, eq=False)
class BatchSizes(_OfLayersAlone):
    """Stands for ``PackedSequence.batch_sizes``, of which layers ask the first alone: how many sequences there are."""

    sequences: int

    @property
    def device(self) -> torch.device:
        """Where torch wants it."""
        return torch.device("cpu")

    def __getitem__(self, step: int) -> int:
        return self.sequences if step == 0 else _refused(self)


@contextmanager
def packed_sequences() -> Iterator[None]:
    """Inside, torch's functions pack and pad as is said above, under whatever name they were imported."""
    with _replaced(rnn.pack_padded_sequence, _pack), _replaced(rnn.pad_packed_sequence, _pad):
        yield


@contextmanager
def _replaced(function: Any, by: Callable[..., object]) -> Iterator[None]:
    """Inside, ``function`` calls ``by`` with its arguments and, behind them, with what it is outside."""
    own, namespace, name = function.__code__, function.__globals__, f"_regista_{function.__name__}"
    outside = FunctionType(own, namespace, function.__name__, function.__defaults__)
    names = own.co_varnames[: own.co_argcount]
    made: dict[str, Any] = {}
    exec(f"def replaced({', '.join(names)}): return {name}({', '.join(names)}, {name}_outside)", made)
    namespace.update({name: by, f"{name}_outside": outside})
    function.__code__ = made["replaced"].__code__
    try:
        yield
    finally:
        function.__code__ = own
        del namespace[name], namespace[f"{name}_outside"]


def _pack(
    x: Tensor, lengths: Tensor | Sequence[int], batch_first: bool, enforce_sorted: bool, outside: Callable[..., PackedSequence]
) -> PackedSequence:
    x = x.transpose(0, 1) if batch_first else x
    known = None if isinstance(lengths, Tensor) else tuple(int(length) for length in lengths)
    _check_number(len(lengths), x.shape[1])
    if known is not None:
        check_lengths(list(known), x.shape[0], enforce_sorted)
        x = x[: max(known)]
    of_each = (lengths if isinstance(lengths, Tensor) else torch.tensor(known)).to(device=x.device, dtype=torch.int64)
    if known is None:
        of_each = torch.ops.regista.sequence_lengths(of_each, x.shape[0], enforce_sorted)
    data: Any = PackedData(torch.where(_within(of_each, x), x, 0.0), of_each, known)
    sizes: Any = BatchSizes(x.shape[1])
    return PackedSequence(data, sizes)


def _check_number(lengths: int, sequences: int) -> None:
    if lengths != sequences:
        raise InvalidProgram(
            f"pack_padded_sequence is given {lengths} lengths for {sequences} sequences; a list is one of the whole batch, so where the batch "
            "is split into micro-batches the lengths are a tensor among the inputs"
        )


def _pad(
    sequence: PackedSequence,
    batch_first: bool,
    padding_value: float,
    total_length: int | None,
    outside: Callable[..., tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor]:
    data: object = sequence.data
    if not isinstance(data, PackedData):
        return outside(sequence, batch_first, padding_value, total_length)
    y = data.padded
    steps = y.shape[0]
    if data.known is None and (total_length is None or total_length < steps):
        asked = "no total_length" if total_length is None else f"total_length={total_length}"
        raise InvalidProgram(
            f"pad_packed_sequence with {asked} lets a value decide what is computed: its result has as many steps as the longest sequence; "
            f"give total_length=x.size({int(batch_first)}), here {steps}, and mask what lies behind the lengths"
        )
    total = total_length or steps
    if total < steps:
        raise InvalidProgram(f"pad_packed_sequence is given total_length={total}, but the longest sequence has {steps} steps")
    y = torch.where(_within(data.lengths, y), y, padding_value)
    if total > steps:
        y = torch.cat([y, y.new_full((total - steps, *y.shape[1:]), padding_value)])
    return y.transpose(0, 1) if batch_first else y, data.lengths


def _steps(x: Tensor) -> Tensor:
    return torch.arange(x.shape[0], device=x.device).view(-1, *[1] * (x.dim() - 1))


def _of_sequences(lengths: Tensor, x: Tensor) -> Tensor:
    return lengths.view(1, -1, *[1] * (x.dim() - 2))


def _within(lengths: Tensor, x: Tensor) -> Tensor:
    """[T, N, 1 ...]: whether a step of x, [T, N, ...], is one of the sequence."""
    return _steps(x) < _of_sequences(lengths, x)


def padded_steps(
    run: Callable[..., tuple[Tensor, tuple[Tensor, ...]]],
    lengths: Tensor,
    x: Tensor,
    parameters: Sequence[Tensor],
    first: tuple[Tensor, ...],
    reverse: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """(1) to (3) of one direction of one layer, by the function ``run`` that performs it where all sequences have T steps.

    Args:
        run: (x, parameters, first states, reverse) -> hidden states [T, N, H], last states.
        lengths: [N].   x: [T, N, I].   parameters, first: as of ``run``.
    """
    last_step = _of_sequences(lengths, x) - 1
    turned = torch.where(_within(lengths, x), last_step - _steps(x), _steps(x))
    given = x.gather(0, turned.expand_as(x)) if reverse else x
    if len(first) == 1:
        y, _ = run(given, parameters, first, False)
        cells: tuple[Tensor, ...] = ()
    else:
        given, parameters = _holding_cells(lengths, given, parameters)
        y, (_, *cells) = run(given, parameters, first, False)  # type: ignore[assignment]
    last = y.gather(0, last_step.expand(1, *y.shape[1:]))[0]
    return y.gather(0, turned.expand_as(y)) if reverse else y, (last, *cells)


def _holding_cells(lengths: Tensor, x: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
    """(3): x and the weight of the input with one more input."""
    of_input, *others = parameters
    ended = (~_within(lengths, x)).to(x.dtype)
    i, f, g, o = of_input.new_zeros((of_input.shape[0], 1)).chunk(4)
    column = torch.cat([i - _HOLD, f + _HOLD, g, o])
    return torch.cat([x, ended], -1), [torch.cat([of_input, column], 1), *others]
