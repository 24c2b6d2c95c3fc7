"""Is what has the batch's extent the batch?  The step's forward part is run, without values, at other extents.

    all batch inputs at e                             runs        (or the module is made for one extent, and nothing can be tried)
    the others at e, input i at its own extent        must fail   (or input i need not go along with the batch: it is ambiguous)
        or, all running at e, at a prime              must fail   (its own extent may fit by chance: view(4, -1, ...) takes all that 4 divides)

To read a tensor at a place that it does not have is to fail, which tensors without values do not tell (planner.frontend.trial.places).

A recurrent or attention layer with batch_first=False whose input has e in dim 0 takes the batch for time.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import register_module_forward_pre_hook

from planner.frontend.batch import BatchDims
from planner.frontend.inputs import InputForm
from planner.frontend.precision import Precision
from planner.frontend.tracing.decomp import decomposition_table
from planner.frontend.tracing.recorder.record import Recorder
from planner.frontend.tracing.recorder.traced import NotRecordable
from planner.frontend.tracing.untouched import (
    as_in_make_fx,
    device_neutral,
    exporting,
    quiet,
    untouched,
    wide_grouped_products,
    without_reentrance,
)
from planner.frontend.trial.places import RangeCheck
from planner.ir.errors import InvalidProgram

__all__ = ["refuse_ambiguous"]

_SEQUENCE_LAYERS = (nn.RNNBase, nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


class _Forward(nn.Module):
    """Forward, and the loss where there is a function of it."""

    def __init__(self, module: nn.Module, loss: Callable[..., object] | None, form: InputForm, precision: Precision) -> None:
        super().__init__()
        self.module, self._precision = module, precision
        self._loss, self._form = (loss,), form

    def forward(self, *inputs: Tensor) -> object:
        (loss,) = self._loss
        with self._precision.autocast():
            returned, targets = self._form.output(self.module, inputs)
            return returned if loss is None else loss(returned, *targets)


def refuse_ambiguous(
    dims: BatchDims,
    inputs: Sequence[Tensor],
    module: nn.Module,
    loss: Callable[..., object] | None,
    form: InputForm,
    precision: Precision = Precision.FP32,
) -> None:
    """Try out dims that were found by their extents; those that the user gave are the user's.

    Raises:
        InvalidProgram: an input need not go along with the batch, or a layer takes the batch for time; with the way out.
    """
    if dims.given:
        return
    batched = [index for index, dim in enumerate(dims.dims) if dim is not None]
    forward = _Forward(module, loss, form, precision)
    taken = {int(extent) for t in inputs for extent in t.shape}
    other = next((extent for extent in _PRIMES if extent not in taken), max(taken) + 1)
    prime = next(extent for extent in (*_PRIMES, 2 * other + 1) if extent not in taken and extent != other)
    tried = [_with_extent(t, other) if index in batched else t for index, t in enumerate(inputs)]
    if any(_is_sequence_first(child) for child in module.modules()):
        with _takes_for_time(module, other) as told:
            _runs(forward, tried)
        if told:
            raise InvalidProgram(
                f"{told[0]} takes dim 0 of its input for time, but dim 0 of input.{batched[0]} was found to be the batch, of {dims.size}: "
                "micro-batches would be cut in time; say batch_dim=1 (or one entry per input), or build the layer with batch_first=True"
            )
    for index in batched[1:]:
        if _runs(forward, [*tried[:index], inputs[index], *tried[index + 1 :]]):
            all_run = _runs(forward, tried)
            if all_run and not _runs(forward, [*tried[:index], _with_extent(inputs[index], prime), *tried[index + 1 :]]):
                continue
            seen = (
                "as well: micro-batches would cut what may be no batch"
                if all_run
                else "only: it is no batch, and micro-batches would cut it"
            )
            raise InvalidProgram(
                f"input.{index} of shape {list(inputs[index].shape)} has the batch's extent {dims.size} in dim 0, but with {other} samples "
                f"in the others the step runs with {dims.size} of it {seen}; say batch_dim= per input "
                f"(0 if input.{index} holds a row per sample, None if not)"
            )


_PRIMES = (7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83)


def _with_extent(tensor: Tensor, extent: int) -> Tensor:
    return torch.empty((extent, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")


def _is_sequence_first(module: nn.Module) -> bool:
    return isinstance(module, _SEQUENCE_LAYERS) and not _batch_first(module)


def _batch_first(module: nn.Module) -> bool:
    attention = getattr(module, "self_attn", module)  # torch's encoder and decoder layers leave it to their attention
    return bool(getattr(attention, "batch_first", False))


@contextmanager
def _takes_for_time(module: nn.Module, extent: int) -> Iterator[list[str]]:
    """Names of layers that are given ``extent`` steps, in the list that it gives."""
    names, told = {id(child): name for name, child in module.named_modules()}, list[str]()

    def look(child: nn.Module, args: tuple[object, ...]) -> None:
        given = args[0] if args else None
        if id(child) in names and _is_sequence_first(child) and isinstance(given, Tensor) and given.ndim == 3 and given.shape[0] == extent:
            told.append(f"module {names[id(child)]!r} ({type(child).__name__} with batch_first=False)")

    hook = register_module_forward_pre_hook(look)
    try:
        yield told
    finally:
        hook.remove()


def _runs(forward: _Forward, inputs: Sequence[Tensor]) -> bool:
    """Whether forward and loss run on inputs of such shapes."""
    module, (loss,) = forward.module, forward._loss
    with (
        quiet(),
        warnings.catch_warnings(),
        untouched({"": module, "loss": loss}) as snapshot,
        FakeTensorMode(allow_non_fake_inputs=True),
        torch.enable_grad(),
        sdpa_kernel(SDPBackend.MATH),
        device_neutral(),
        wide_grouped_products(),
        exporting(),
        without_reentrance(),
        as_in_make_fx(),
    ):
        warnings.simplefilter("ignore")  # torch's losses warn of shapes that they broadcast
        try:
            recorder = Recorder(decomposition_table(), lambda _node: None)
            with recorder, RangeCheck():
                _call(forward, inputs, recorder.placeholder)
        except NotRecordable:  # the slow way
            snapshot.restore()
            try:
                with RangeCheck():
                    _call(forward, inputs, lambda shape, dtype, grad: torch.empty(shape, dtype=dtype).requires_grad_(grad))
            except Exception:
                return False
        except Exception:
            return False
    return True


def _call(forward: _Forward, inputs: Sequence[Tensor], make: Callable[[torch.Size, torch.dtype, bool], Tensor]) -> None:
    module = forward.module
    state = [*module.named_parameters(), *module.named_buffers()]
    held = {f"module.{name}": make(t.shape, t.dtype, t.requires_grad) for name, t in state}
    functional_call(forward, held, tuple(make(t.shape, t.dtype, False) for t in inputs), tie_weights=True)
